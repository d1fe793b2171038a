"""A transaction that looks at an old snapshot for ten minutes, as a dump does, while the queue works."""

from __future__ import annotations

import statistics
import time

from benchmarks.backlog import settle
from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.outcome import Outcome
from benchmarks.spread import ratios
from benchmarks.stack import open_site
from benchmarks.turns import Cycles
from benchmarks.workers import Workers

TOPIC = "snapshot"
BATCH, CLIENTS = 100, 4
# The pinned site works this many slices for one of the other.
SHARE = 3
RATE_RATIO, P99_RATIO = 0.75, 1.5

METHOD = f"""\
Two sites on the same server, each a database with 4 shards and a queue process of its own. In the database of
one a REPEATABLE READ transaction takes a snapshot and stays open: nothing that the queue deletes there can be
cleaned up. {CLIENTS} clients enqueue, dequeue and ack batches of {BATCH} on the pinned site, {SHARE} slices,
then one slice on the other, over and over until the snapshot is as old as stated (`--snapshot-s`). A ratio
compares the last of the {SHARE} slices with the one that follows it. What is required is taken over the last
third of the time."""


async def run(bench: Bench) -> Outcome:
    """Measure the pinned site and the free one until the time is over."""
    outcome = Outcome("snapshot", METHOD)
    plan = bench.plan
    bench.progress.begin("snapshot", round(plan.snapshot_s / (plan.slice_s * (SHARE + 1))))
    async with (
        open_site(bench.stack, "snapshot_pinned") as pinned,
        open_site(bench.stack, "snapshot_free") as free,
        Workers(pinned, CLIENTS, BATCH, [TOPIC]) as pinned_workers,
        Workers(free, CLIENTS, BATCH, [TOPIC]) as free_workers,
    ):
        sides = (Cycles(pinned_workers.cycles(), pinned), Cycles(free_workers.cycles(), free))
        for side, site in zip(sides, (pinned, free), strict=True):
            await side.warm_up(bench)
            await settle(site)
        holder = await pinned.connect({})
        holding = holder.transaction(isolation="repeatable_read")
        await holding.start()
        await holder.fetchval("SELECT txid_current()")
        try:
            await _until_old(bench, outcome, sides, (pinned_workers, free_workers))
        finally:
            await holding.rollback()
            await holder.close()
    return outcome


async def _until_old(
    bench: Bench, outcome: Outcome, sides: tuple[Cycles, Cycles], workers: tuple[Workers, Workers]
) -> None:
    begun = time.perf_counter()
    times_s: list[float] = []
    rates: tuple[list[float], list[float]] = ([], [])
    p99s: tuple[list[float], list[float]] = ([], [])
    costs = (Cost(), Cost())
    for timed in workers:
        timed.dequeues_ms.clear()
    while not times_s or time.perf_counter() - begun < bench.plan.snapshot_s:
        for which in [0] * SHARE + [1]:
            workers[which].dequeues_ms.clear()
            done, busy = await sides[which].measure(bench, outcome)
            costs[which].add(busy, done.items, done.wal_bytes)
            if which == 0:
                last, last_p99 = done.items_per_s, workers[0].take_p99_ms()
        times_s.append(time.perf_counter() - begun)
        rates[0].append(last)
        rates[1].append(done.items_per_s)
        p99s[0].append(last_p99)
        p99s[1].append(workers[1].take_p99_ms())
        bench.progress.step(
            f"after {times_s[-1]:.0f} s: {rates[0][-1]:,.0f} items/s pinned, {rates[1][-1]:,.0f} free"
        )
    _report(outcome, times_s, rates, p99s, costs)


def _report(
    outcome: Outcome,
    times_s: list[float],
    rates: tuple[list[float], list[float]],
    p99s: tuple[list[float], list[float]],
    costs: tuple[Cost, Cost],
) -> None:
    last = [i for i, at_s in enumerate(times_s) if at_s >= times_s[-1] * 2 / 3]
    pinned, free = ([side[i] for i in last] for side in rates)
    outcome.add("last third: snapshot pinned", "items/s", pinned, costs[0])
    outcome.add("last third: no old snapshot", "items/s", free, costs[1])
    rate = ratios(pinned, free)
    outcome.add("last third: pinned / free", "ratio", rate.values)
    late, early = (statistics.median(p99s[side][i] for i in last) for side in (0, 1))
    outcome.add("last third: dequeue p99, snapshot pinned", "ms", [p99s[0][i] for i in last])
    outcome.add("last third: dequeue p99, no old snapshot", "ms", [p99s[1][i] for i in last])
    outcome.details["series"] = {
        "at_s": [round(at_s, 1) for at_s in times_s],
        "pinned_items_per_s": [round(value) for value in rates[0]],
        "free_items_per_s": [round(value) for value in rates[1]],
        "pinned_p99_ms": [round(value, 2) for value in p99s[0]],
        "free_p99_ms": [round(value, 2) for value in p99s[1]],
    }
    minutes = times_s[-1] / 60
    outcome.require_at_least(
        f"full cycle with a snapshot pinned for {minutes:.1f} min / without", rate, RATE_RATIO
    )
    outcome.require_below("p99 of a dequeue of 100, snapshot pinned / without", ratios([late], [early]), P99_RATIO)
