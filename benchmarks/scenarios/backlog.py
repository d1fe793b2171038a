"""What is ready in the queue must not slow it down: rate, p99 of a dequeue and memory at several backlogs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.backlog import fill, settle
from benchmarks.bench import Bench
from benchmarks.load import Http
from benchmarks.outcome import Outcome
from benchmarks.spread import ratios, spread
from benchmarks.stack import BenchStack, open_site
from benchmarks.turns import Cycles, Side, in_turns
from benchmarks.workers import Workers

MAIN = "main"
TOPICS = 10_000
BATCH, CLIENTS = 100, 4
TOPICS_A_CALL = 100
RATE_RATIO, P99_RATIO, RSS_MIB = 0.85, 1.5, 200.0

METHOD = f"""\
One site for each backlog, all on the same server: a database of its own with 4 shards, and a queue process of
its own. A site's backlog was written straight into the tables, as calls of 100 items would have left it,
vacuumed and checkpointed before the first slice: half of it in one topic, half in {TOPICS:,} others, each topic on
one shard. One site more has the smaller backlog spread over all shards, as a topic's is that once took more
than a shard does. {CLIENTS} clients enqueue batches of {BATCH} into the
one topic, dequeue {BATCH} and ack them, so that what is taken is the oldest of the backlog. Sites are measured
in turns; ratios are taken within rounds. Memory is the resident memory of the site's queue process: after the
slices, and after every one of the {TOPICS:,} topics has been dequeued from once ({TOPICS_A_CALL} topics a call,
one item each). Where there is no backlog the other topics hold nothing."""


async def run(bench: Bench) -> Outcome:
    """Measure all backlogs in turns."""
    outcome = Outcome("backlog", METHOD)
    plan = bench.plan
    backlogs = plan.backlogs_or(0, 1_000_000, 10_000_000)
    topics = [f"t{i}" for i in range(plan.sized(TOPICS, 50))]
    wanted = [(backlog, False) for backlog in backlogs]
    wanted[1:1] = [(backlog, True) for backlog in backlogs[1:2]]
    bench.progress.begin("backlog", plan.rounds * len(wanted))
    async with AsyncExitStack() as stack:
        sites: dict[str, BenchStack] = {}
        workers: dict[str, Workers] = {}
        for number, (backlog, spread_out) in enumerate(wanted):
            name = f"backlog {backlog:,}{', spread' if spread_out else ''}"
            sites[name] = await stack.enter_async_context(open_site(bench.stack, f"backlog_{number}"))
            bench.progress.note(f"filling a site with {backlog:,} items")
            await fill(sites[name], [MAIN], backlog - backlog // 2, spread=spread_out)
            await fill(sites[name], topics, backlog // 2, spread=spread_out)
            await settle(sites[name])
            workers[name] = await stack.enter_async_context(Workers(sites[name], CLIENTS, BATCH, [MAIN]))
        sides: dict[str, Side] = {name: Cycles(workers[name].cycles(), sites[name]) for name in sites}
        found = await in_turns(bench, outcome, "cycle", sides, workers=workers)
        await _memory(bench, outcome, sites, topics)
    none, *others = found
    for name in others:
        rate, p99 = found[name].over(found[none]), ratios(found[name].p99s_ms, found[none].p99s_ms)
        outcome.add(f"rate at {name} / at none", "ratio", rate.values)
        outcome.add(f"dequeue p99 at {name} / at none", "ratio", p99.values)
        if name == others[-1]:
            outcome.require_at_least(f"full cycle at {name} / at none", rate, RATE_RATIO)
            outcome.require_below(f"p99 of a dequeue of 100 at {name} / at none", p99, P99_RATIO)
    return outcome


async def _memory(bench: Bench, outcome: Outcome, sites: Mapping[str, BenchStack], topics: list[str]) -> None:
    for name, site in sites.items():
        outcome.add(f"queue process at {name}, after the slices", "MiB", [site.meter.rss_mib("queue")])
    name, site = list(sites.items())[-1]
    after_slices = site.meter.rss_mib("queue")
    bench.progress.note(f"dequeuing from {len(topics):,} topics once")
    await _touch(site, topics)
    touched = site.meter.rss_mib("queue")
    outcome.add(f"queue process at {name}, every topic dequeued from", "MiB", [touched])
    bench.progress.note(f"{name}: queue process {after_slices:.0f} MiB, all topics used {touched:.0f} MiB")
    largest = max(after_slices, touched)
    what = f"memory of a queue process, largest backlog, {len(topics):,} topics"
    outcome.require_below(what, spread([largest]), RSS_MIB, "MiB")


async def _touch(site: BenchStack, topics: list[str]) -> None:
    http = Http(site.queue_url)
    try:
        for first in range(0, len(topics), TOPICS_A_CALL):
            demands: list[dict[str, Any]] = [
                {"topic": topic, "count": 1} for topic in topics[first : first + TOPICS_A_CALL]
            ]
            leased = await http.dequeue_from(demands)
            if leased:
                await http.ack(leased)
    finally:
        http.close()
