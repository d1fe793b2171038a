"""More than the service can do is offered: how fast it refuses, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from benchmarks.bench import Bench
from benchmarks.floors import Cycle
from benchmarks.load import PAYLOAD, Http, Leased, Refused, Slice, alongside
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.program import run_program
from benchmarks.spread import percentile, ratios, spread
from headgate import AsyncClient

TOPIC = "overload"
BATCH, CLIENTS, CONSUMERS, COUNT = 10, 64, 8, 100
FACTOR, SLICES, SENDERS_MAX = 2.0, 4, 2_000
CROWD, CROWD_BATCH, CROWD_S, AGAIN_S, TICK_S = 2_000, 100, 16.0, 1.0, 0.01
SMALL_CROWD, SMALL_CROWD_S = 300, 2.0
# In which the process that offers begins.
START_S = 1.0
REFUSAL_MS, GOODPUT_RATIO = 100.0, 0.8

METHOD = f"""\
{CONSUMERS} consumers take up to {COUNT} items at a time and ack them; what of theirs is refused they send again
after 50 ms. First the rates at saturation: {CLIENTS} clients enqueue batches of {BATCH} one after another; the
median of the rounds. Then batches of {BATCH} are enqueued at {FACTOR:g} times what these clients did, for
{SLICES} slices, by a process of their own: the times of all arrivals are drawn in advance (a Poisson process),
each is sent when it is due, on a connection that is free or a new one up to {SENDERS_MAX:,}, and nobody sends
again what was refused. `offered` is what that process has sent, which may be less than it was to. Then
a crowd, far more than the service lets stand: {CROWD:,} clients enqueue batches of {CROWD_BATCH} one after
another for {CROWD_S:g} s, and who is refused sends the next one {AGAIN_S:g} s later, as the answer asks. The
first half of each is not counted. A refusal is an answer 429 or 503; its time, as that of an accepted ack, is
from sending to answer, the client's own lateness included. Goodput is items acked per second. What was left
is purged after each round, and that waited for."""


@dataclass
class Seen:
    """What was answered in the second half of an overload."""

    since: float
    until: float
    refused_ms: list[float] = field(default_factory=list)
    acks_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # by how much the client itself was late
    sent: int = 0
    acked: int = 0

    def counts(self, sent: float | None = None) -> bool:
        """Whether what ends now is counted; of a call's time, also that it was sent no earlier."""
        now = time.perf_counter()
        return self.since <= (now if sent is None else sent) and now < self.until

    @property
    def items_per_s(self) -> float:
        """Items acked; at least one, so that it can be divided by."""
        return max(self.acked, 1) / (self.until - self.since)


async def run(bench: Bench) -> Outcome:
    """Find the rates at saturation, then offer twice as much; then send a crowd."""
    outcome = Outcome("overload", METHOD)
    plan = bench.plan
    bench.progress.begin("overload", plan.rounds * 3)
    taken: list[float] = []
    acked: list[float] = []
    for turn in range(plan.rounds):
        enqueued, seen = await _saturate(bench, outcome, f"{TOPIC}-s{turn}")
        taken.append(max(enqueued.items, 1) / enqueued.elapsed_s)
        acked.append(seen.items_per_s)
        bench.progress.step(f"saturation: {taken[-1]:,.0f} items/s enqueued, {acked[-1]:,.0f} acked")
    rate = FACTOR * spread(taken).median
    found = []
    for turn in range(plan.rounds):
        before = bench.stack.meter.read()
        found.append(await _overload(bench, f"{TOPIC}-{turn}", rate / BATCH))
        bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
        refused = len(found[-1].refused_ms)
        shown = f"{found[-1].items_per_s:,.0f} items/s acked, {refused:,} calls refused"
        bench.progress.step(f"offered {rate:,.0f} items/s: {shown}")
    crowds = []
    for turn in range(plan.rounds):
        crowds.append(await _crowd(bench, f"{TOPIC}-c{turn}"))
        shown = f"{crowds[-1].items_per_s:,.0f} items/s acked, {len(crowds[-1].refused_ms):,} calls refused"
        bench.progress.step(f"a crowd: {shown}")
    outcome.add("enqueued at saturation", "items/s", taken)
    _report(outcome, rate, acked, found)
    _report_crowd(outcome, acked, crowds)
    return outcome


def _report(outcome: Outcome, rate: float, rates: Sequence[float], found: Sequence[Seen]) -> None:
    outcome.add("acked at saturation", "items/s", rates)
    outcome.add("goodput", "items/s", [seen.items_per_s for seen in found], f"{rate:,.0f} items/s to be offered")
    outcome.add("offered", "items/s", [seen.sent * BATCH / (seen.until - seen.since) for seen in found])
    goodput = ratios([seen.items_per_s for seen in found], rates)
    outcome.add("goodput / acked at saturation", "ratio", goodput.values)
    outcome.details["refused"] = [len(seen.refused_ms) for seen in found]
    outcome.details["sent"] = [seen.sent for seen in found]
    _times(outcome, "refusal", [seen.refused_ms for seen in found])
    _times(outcome, "accepted ack", [seen.acks_ms for seen in found])
    _times(outcome, "lateness of what offers", [seen.late_ms for seen in found])
    outcome.require_at_least("goodput / acked at saturation", goodput, GOODPUT_RATIO)


def _report_crowd(outcome: Outcome, rates: Sequence[float], found: Sequence[Seen]) -> None:
    outcome.details["crowd: refused"] = [len(seen.refused_ms) for seen in found]
    outcome.details["crowd: sent"] = [seen.sent for seen in found]
    goodput = ratios([seen.items_per_s for seen in found], rates)
    outcome.add("crowd: goodput / acked at saturation", "ratio", goodput.values)
    _times(outcome, "crowd: refusal", [seen.refused_ms for seen in found])
    _times(outcome, "crowd: accepted ack", [seen.acks_ms for seen in found])
    _times(outcome, "crowd: lateness of the client itself", [seen.late_ms for seen in found])


def _times(outcome: Outcome, name: str, rounds: Sequence[Sequence[float]]) -> None:
    answered = [times for times in rounds if times]
    for which in (0.5, 0.99) if answered else ():
        measured = outcome.add(f"{name}, p{which * 100:g}", "ms", [percentile(times, which) for times in answered])
        if name.endswith("refusal") and which > 0.5:
            outcome.require_below(f"p99 of a {name}", measured, REFUSAL_MS, "ms")


async def _saturate(bench: Bench, outcome: Outcome, topic: str) -> tuple[Slice, Seen]:
    connections = [Http(bench.stack.queue_url) for _ in range(CLIENTS)]

    def enqueuer(http: Http) -> Cycle:
        async def cycle() -> int:
            return len(await http.enqueue([{"topic": topic, "payload": PAYLOAD}] * BATCH))

        return cycle

    cycles = [enqueuer(http) for http in connections]
    await bench.warm_up(cycles)
    begun = time.perf_counter()
    seen = Seen(begun, begun + bench.plan.slice_s)
    async with _consumers(bench, topic, seen):
        done, _ = await bench.slice(outcome, cycles)
    for http in connections:
        http.close()
    await _purge(bench, topic)
    return done, seen


async def _purge(bench: Bench, topic: str) -> None:
    async with AsyncClient(queue_url=bench.stack.queue_url) as client:
        purge = await client.begin_operation("purge", topic=topic)
        while not purge.finished:  # else the next round would be measured beside it
            await asyncio.sleep(0.2)
            purge = await client.operation(purge.id)


async def _overload(bench: Bench, topic: str, calls_per_s: float) -> Seen:
    duration_s = bench.plan.slice_s * SLICES
    begun, begin_s = time.perf_counter() + START_S, time.time() + START_S
    seen = Seen(begun + duration_s / 2, begun + duration_s)
    asked = {"queue_url": bench.stack.queue_url, "topic": topic, "batch": BATCH, "calls_per_s": calls_per_s}
    asked |= {"begin_s": begin_s, "from_s": duration_s / 2, "until_s": duration_s, "senders_max": SENDERS_MAX}
    async with _consumers(bench, topic, seen):
        found = await run_program("benchmarks.offer_program", asked)
    seen.sent = found["sent"]
    seen.refused_ms += found["refused_ms"]
    seen.late_ms += found["late_ms"]
    await _purge(bench, topic)
    return seen


async def _crowd(bench: Bench, topic: str) -> Seen:
    duration_s = SMALL_CROWD_S if bench.plan.small else CROWD_S
    begun = time.perf_counter()
    seen = Seen(begun + duration_s / 2, begun + duration_s)
    # Written down once: the crowd shares the machine with those who refuse it.
    items = msgspec.Raw(msgspec.json.encode([{"topic": topic, "payload": PAYLOAD}] * CROWD_BATCH))

    async def send(http: Http) -> None:
        while True:
            seen.sent += seen.counts()
            sent = time.perf_counter()
            try:
                await http.call(b"POST", "/enqueue", {"items": items})
            except Refused as error:
                _note(seen, error, sent)
                await asyncio.sleep(AGAIN_S)

    crowd = [Http(bench.stack.queue_url) for _ in range(bench.plan.sized(CROWD, SMALL_CROWD))]
    async with _consumers(bench, topic, seen), alongside(crowd, send):
        while (now := time.perf_counter()) < seen.until:
            await asyncio.sleep(TICK_S)
            if seen.counts(now):
                seen.late_ms.append((time.perf_counter() - now - TICK_S) * 1000)
    await _purge(bench, topic)
    return seen


@asynccontextmanager
async def _consumers(bench: Bench, topic: str, seen: Seen) -> AsyncIterator[None]:
    async def consume(http: Http) -> None:
        while True:
            leased: list[Leased] = []
            while not leased:
                with contextlib.suppress(Retry):
                    async with _again(seen):
                        leased = await http.dequeue(topic, COUNT, wait_s=5.0)
            acked = 0
            while not acked:
                sent = time.perf_counter()
                with contextlib.suppress(Retry):
                    async with _again(seen):
                        acked = await http.ack(leased)
            if seen.counts(sent):
                seen.acks_ms.append((time.perf_counter() - sent) * 1000)
            seen.acked += acked * seen.counts()

    connections = [Http(bench.stack.queue_url) for _ in range(CONSUMERS)]
    async with alongside(connections, consume):
        yield


class Retry(Exception):
    """The call was refused, and may be sent again now."""


@asynccontextmanager
async def _again(seen: Seen) -> AsyncIterator[None]:
    sent = time.perf_counter()
    try:
        yield
    except Refused as error:
        _note(seen, error, sent)
        await asyncio.sleep(0.05)
        raise Retry from error


def _note(seen: Seen, error: Refused, sent: float) -> None:
    if not error.for_now:
        raise error
    if seen.counts(sent):
        seen.refused_ms.append((time.perf_counter() - sent) * 1000)
