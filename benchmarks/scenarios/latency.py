"""Latency under open-loop load: items arrive by a schedule fixed in advance, whatever the answers do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.bench import Bench
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed, leave_out
from benchmarks.peers.process import DURABLE_QUEUES, PeerSide, Running, open_peers
from benchmarks.spread import percentile, spread
from benchmarks.turns import Cycles, Side
from benchmarks.workers import Workers

TOPIC = "latency"
SHARES = (25, 50, 75, 90)
SENDERS, CONSUMERS, COUNT = 64, 4, 100
OURS = "Headgate, through HTTP"

METHOD = f"""\
First the capacity of each: items per second of the full cycle of single items by {SENDERS} clients, the median
of the rounds. Then single items arrive at {", ".join(f"{share} %" for share in SHARES)} of it: the times of all
arrivals are drawn in advance (a Poisson process), and {SENDERS} senders take the next arrival each; when all
are busy, an arrival waits, and its latency counts from the time it should have been sent. Measured is the time
until a consumer has the item. Ours has {CONSUMERS} consumers that keep a long poll open for up to {COUNT} items
and ack what they get. A peer runs its own workers (see `peers`), and its time ends when the job starts. Timers
are good to 1 ms. Each load runs for a slice in every round; percentiles are over each round."""


async def run(bench: Bench) -> Outcome:
    """Find capacities, then measure every load."""
    outcome = Outcome("latency", METHOD)
    plan = bench.plan
    async with AsyncExitStack() as stack:
        peers = await open_peers(bench, DURABLE_QUEUES, outcome, stack)
        bench.progress.begin("latency", plan.rounds * (1 + len(peers)) * (1 + len(SHARES)))
        workers = await stack.enter_async_context(Workers(bench.stack, SENDERS, 1, [TOPIC]))
        sides: dict[str, Side] = {OURS: Cycles(workers.cycles())}
        sides |= {name: PeerSide(running, 1, SENDERS) for name, running in peers.items()}
        capacity = await _capacities(bench, outcome, sides)
        await workers.drain()
        for share in SHARES:
            found: dict[str, list[list[float]]] = {name: [] for name in sides}
            for _ in range(plan.rounds):
                for name in list(sides):
                    rate = max(10.0, capacity[name] * share / 100)
                    try:
                        found[name].append(await _measure(bench, outcome, peers.get(name), rate))
                    except PeerFailed as error:
                        leave_out(bench, outcome, name, error)
                        del sides[name], found[name]
                        continue
                    shown = percentile(found[name][-1], 0.99)
                    bench.progress.step(f"{share} %, {rate:,.0f} items/s  {name}: p99 {shown:.1f} ms")
            _report(outcome, share, capacity, found)
    return outcome


async def _capacities(bench: Bench, outcome: Outcome, sides: dict[str, Side]) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(bench.plan.rounds):
        for name, side in list(sides.items()):
            try:
                if turn == 0:
                    await side.warm_up(bench)
                done, _ = await side.measure(bench, outcome)
            except PeerFailed as error:
                leave_out(bench, outcome, name, error)
                del sides[name], rates[name]
                continue
            rates[name].append(max(done.items, 1) / done.elapsed_s)
            bench.progress.step(f"capacity  {name}: {rates[name][-1]:,.0f} items/s")
    for name, values in rates.items():
        outcome.add(f"capacity: {name}", "items/s", values)
    return {name: spread(values).median for name, values in rates.items()}


def _report(outcome: Outcome, share: int, capacity: dict[str, float], found: dict[str, list[list[float]]]) -> None:
    for name, rounds in found.items():
        rate = capacity[name] * share / 100
        for which in (0.5, 0.99):
            values = [percentile(latencies, which) for latencies in rounds]
            measured = outcome.add(
                f"{share} % load: {name}, p{which * 100:g}", "ms", values, f"{rate:,.0f} items/s"
            )
            series = outcome.details.setdefault("series", {}).setdefault(name, {})
            series.setdefault(f"p{which * 100:g}_ms", []).append(round(measured.median, 2))
        series.setdefault("items_per_s", []).append(round(rate))


async def _measure(bench: Bench, outcome: Outcome, peer: Running | None, rate: float) -> list[float]:
    """The latencies of one slice, in milliseconds."""
    if peer is None:
        before = bench.stack.meter.read()
        latencies = await _ours(bench, rate)
        bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
        return latencies
    # The processes of a peer each send their share, and each runs what comes.
    answers, _, _ = await peer.ask(
        bench,
        outcome,
        do="latency",
        rate=rate / len(peer.processes),
        seconds=bench.plan.slice_s,
        warm_s=bench.plan.warmup_s,
    )
    lost = sum(max(0, answer["lost"]) for answer in answers) if len(answers) == 1 else 0
    return [value for answer in answers for value in answer["latencies_ms"]] + [10_000.0] * lost or [10_000.0]


async def _ours(bench: Bench, rate: float) -> list[float]:
    choose = random.Random(1)
    connections = [Http(bench.stack.queue_url) for _ in range(SENDERS)]
    latencies: list[float] = []
    begun = time.perf_counter() + 0.2
    schedule, at = [], 0.0
    while at < bench.plan.slice_s:
        schedule.append(begun + at)
        at += choose.expovariate(rate)
    async with _consumers(bench, lambda due: latencies.append((time.perf_counter() - due) * 1000)):
        arrivals = iter(schedule)

        async def sender(http: Http) -> None:
            for due in arrivals:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await http.enqueue([{"topic": TOPIC, "payload": {"at": due, "p": "x" * 96}}])

        await asyncio.gather(*(sender(http) for http in connections))
        deadline = time.perf_counter() + 10.0
        while len(latencies) < len(schedule) and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
    for http in connections:
        http.close()
    assert len(latencies) == len(schedule), f"{len(schedule) - len(latencies)} items did not arrive"
    return latencies


@asynccontextmanager
async def _consumers(bench: Bench, arrived: Callable[[float], None]) -> AsyncIterator[None]:
    async def consume(http: Http) -> None:
        while True:
            leased = await http.dequeue(TOPIC, COUNT, wait_s=20.0)
            for item in leased:
                arrived(item.payload["at"])
            if leased:
                await http.ack(leased)

    connections = [Http(bench.stack.queue_url) for _ in range(CONSUMERS)]
    tasks = [asyncio.create_task(consume(http)) for http in connections]
    try:
        yield
    finally:
        await _cancel(tasks)
        for http in connections:
            http.close()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
