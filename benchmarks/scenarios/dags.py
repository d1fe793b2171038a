"""Many DAGs at once: whole DAGs per second, and what more shards of the DAG service bring."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, fan
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.process import DAGS, open_peers
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import ratios
from benchmarks.stack import BenchStack, open_site

TOPIC = "dags"
BUILDERS = 16
SHARDS = (1, 2, 4)
SMALL, LARGE = 10, 1_000
REQUIRED_DAGS_PER_S = 300.0

METHOD = f"""\
One site for each number of DAG shards ({", ".join(str(count) for count in SHARDS)}), all on the same server,
each with a DAG service and a queue of its own. {BUILDERS} callers create DAGs 1 -> n -> 1 of {SMALL} or
{LARGE:,} nodes, one call each, and wait for the end of each before they create the next; 4 connections dequeue
up to 100 items by long poll and ack them at once. Counted from the first create call to the last end. Peers
(`--peers`) get as many DAGs of {SMALL} nodes at once, in their own way (see `fan`)."""


@dataclass
class Found:
    """What one size did on one site."""

    dags_per_s: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)


async def run(bench: Bench) -> Outcome:
    """Measure both sizes on every site in turns."""
    outcome = Outcome("dags", METHOD)
    plan = bench.plan
    sizes = {SMALL: (fan(SMALL - 2), plan.sized(1_000, 32)), LARGE: (fan(LARGE - 2), plan.sized(16, 1))}
    shards = SHARDS if not plan.small else (2,)
    found = {(nodes, count): Found() for nodes in sizes for count in shards}
    peer_rates: dict[str, list[float]] = {}
    bench.progress.begin("dags", plan.rounds * len(found))
    async with AsyncExitStack() as stack:
        sites = {
            count: await stack.enter_async_context(open_site(bench.stack, f"dags_{count}", dag_shards=count))
            for count in shards
        }
        peers = await open_peers(bench, DAGS, outcome, stack)
        for site in sites.values():
            await run_many(site, sizes[SMALL][0], BUILDERS)
        for turn in range(plan.rounds):
            for nodes, count in list(found)[:: 1 if turn % 2 == 0 else -1]:
                await _measure(bench.on(sites[count]), outcome, found[nodes, count], *sizes[nodes])
                rate = found[nodes, count].dags_per_s[-1]
                bench.progress.step(f"{nodes:,} nodes, {count} shards: {rate:,.1f} DAGs/s")
            for name, running in list(peers.items()):
                few = plan.sized(20 if name.startswith("pg-boss") else 200, 4)
                answer = await running.answer(bench, outcome, do="fan", width=SMALL - 2, count=few)
                if answer is None:
                    del peers[name]
                    peer_rates.pop(name, None)
                    continue
                peer_rates.setdefault(name, []).append(few / answer["seconds"])
                bench.progress.note(f"{name}: {peer_rates[name][-1]:,.1f} DAGs/s of {SMALL} nodes")
    for (nodes, count), one in found.items():
        outcome.add(f"{nodes:,} nodes, {count} DAG shards", "DAGs/s", one.dags_per_s, one.cost)
    for name, values in peer_rates.items():
        outcome.add(f"{SMALL} nodes, {name}", "DAGs/s", values)
    for count in shards[1:]:
        for nodes in sizes:
            ratio = ratios(found[nodes, count].dags_per_s, found[nodes, shards[0]].dags_per_s)
            outcome.add(f"{nodes:,} nodes, {count} DAG shards / 1", "ratio", ratio.values)
    two = outcome.add("10 nodes, 2 DAG shards, create to end", "DAGs/s", found[SMALL, 2].dags_per_s)
    outcome.require_at_least("DAGs of 10 nodes, 2 DAG shards", two, REQUIRED_DAGS_PER_S, "DAGs/s")
    return outcome


async def _measure(bench: Bench, outcome: Outcome, found: Found, graph: Graph, dags: int) -> None:
    wal_from = await bench.stack.wal_bytes()
    before = bench.stack.meter.read()
    elapsed_s = await run_many(bench.stack, graph, dags)
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    found.cost.add(busy, dags * len(graph.keys), await bench.stack.wal_bytes() - wal_from)
    found.dags_per_s.append(dags / elapsed_s)


async def run_many(site: BenchStack, graph: Graph, dags: int) -> float:
    """Run so many DAGs from create to end, some at a time; the seconds it took."""
    builders = [Builder(site.dag_url, TOPIC) for _ in range(BUILDERS)]
    left = iter(range(dags))

    async def build(builder: Builder) -> None:
        for _ in left:
            dag = await builder.create(graph)
            await builder.finish(dag, len(graph.keys))

    async with Consumers(site.queue_url, TOPIC):
        begun = time.perf_counter()
        await asyncio.gather(*(build(builder) for builder in builders))
        elapsed_s = time.perf_counter() - begun
    for builder in builders:
        builder.close()
    return elapsed_s
