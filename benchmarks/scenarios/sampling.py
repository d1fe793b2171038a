"""What a process' own sampling costs the full cycle: as it is beside none, and told from far more of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from benchmarks.bench import Bench
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.spread import spread
from benchmarks.stack import BenchStack, open_site
from benchmarks.turns import Cycles, Measured, Side, in_turns
from benchmarks.workers import Workers

BATCH, CLIENTS, TOPICS = 100, 4, 100
PERCENT_MAX = 1.0
USUAL_S, OFTEN_S, NEVER_S = 5.0, 0.1, 60.0
USUAL, OFTEN, NEVER = (
    f"sampled every {USUAL_S:g} s",
    f"sampled every {OFTEN_S:g} s",
    "not sampled",
)
_SERVICES = ("queue", "postgres")

METHOD = f"""\
{CLIENTS} clients enqueue, dequeue and ack batches of {BATCH} of one topic, 4 shards, while {TOPICS} other topics
hold an item each, on two sites of the same server in turns: one whose queue process samples as it does by default
(the history and `/metrics`, every {USUAL_S:g} s), and one that does not (a point of {NEVER_S:g} s, and no sample
for `/metrics`). A share of a percent is less than the spread of that ratio. So the processor time of a sample is
told from a third site, that samples every {OFTEN_S:g} s: what its queue process and Postgres use while nothing
else is done, less what they use on the site that does not sample. A sample every {USUAL_S:g} s is then a share of
what both use during the full cycle."""


async def run(bench: Bench) -> Outcome:
    """Measure the cycle with and without, then idle sites."""
    outcome = Outcome("sampling", METHOD)
    bench.progress.begin("sampling", 4 * bench.plan.rounds)
    async with AsyncExitStack() as stack:
        sites: dict[str, BenchStack] = {}
        sides: dict[str, Side] = {}
        for name, every_s in ((USUAL, USUAL_S), (NEVER, NEVER_S)):
            sites[name] = await _open(bench, stack, name, every_s)
            workers = await stack.enter_async_context(Workers(sites[name], CLIENTS, BATCH, ["sampling"]))
            sides[name] = Cycles(workers.cycles(), sites[name])
        found = await in_turns(bench, outcome, f"batch {BATCH}, {CLIENTS} clients", sides)
        outcome.add(f"{USUAL} / {NEVER}", "ratio", found[USUAL].over(found[NEVER]).values)
        without = [await _idle(bench, outcome, sites[NEVER], NEVER) for _ in range(bench.plan.rounds)]
        often = await _open(bench, stack, OFTEN, OFTEN_S)
        await asyncio.sleep(bench.plan.slice_s)  # what a process does as it starts is over
        with_it = [await _idle(bench, outcome, often, OFTEN) for _ in range(bench.plan.rounds)]
        samples_s = [max(0.0, one - other) * OFTEN_S for one, other in zip(with_it, without, strict=True)]
        outcome.add("processor time of a sample, of the queue and Postgres", "ms", [s * 1000 for s in samples_s])
        cycle_cores = [_cores(found[NEVER], rate) for rate in found[NEVER].rates]
        outcome.require_below(
            "share of the processor time of a full cycle that sampling takes",
            spread([100 * s / USUAL_S / cores for s, cores in zip(samples_s, cycle_cores, strict=True)]),
            PERCENT_MAX,
            "%",
        )
    return outcome


def _cores(cycle: Measured, rate: float) -> float:
    """How many processors the queue and Postgres keep busy with so many items a second."""
    return sum(cycle.cost.us(group) for group in _SERVICES) * rate / 1e6


async def _idle(bench: Bench, outcome: Outcome, site: BenchStack, name: str) -> float:
    """The same while nothing is asked of a site."""
    before = site.meter.read()
    await asyncio.sleep(bench.plan.slice_s)
    busy = Meter.between(before, site.meter.read())
    bench.watch(outcome, busy)
    cores = sum(busy.groups[group] for group in _SERVICES)
    bench.progress.step(f"idle, {name}: {cores:.3f} processors")
    return cores


async def _open(bench: Bench, stack: AsyncExitStack, name: str, every_s: float) -> BenchStack:
    """A site whose queue process samples so often, with topics that hold something."""
    metrics_s = 1e6 if name == NEVER else every_s
    with _environment(HISTORY_POINT_S=every_s, METRICS_INTERVAL_S=metrics_s):
        site = await stack.enter_async_context(open_site(bench.stack, f"sampling_{round(every_s * 10)}"))
    http = Http(site.queue_url)
    try:
        await http.enqueue([{"topic": f"other-{number}", "payload": 0} for number in range(TOPICS)])
    finally:
        http.close()
    return site


@contextmanager
def _environment(**settings: float) -> Iterator[None]:
    """Queue processes that are started meanwhile have these settings."""
    given = {f"HEADGATE_QUEUE_{name}": f"{value:g}" for name, value in settings.items()}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
