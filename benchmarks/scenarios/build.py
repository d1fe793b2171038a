"""Nodes first, edges after in random order, by four builders at once: does an edge cost more in a larger DAG?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.bench import Bench
from benchmarks.graphs import Edge, chunks, shuffled
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import CALL_MAX, Builder
from benchmarks.scenarios.layered import EDGES_PER_NODE, LAYER, Size, size_of
from benchmarks.spread import ratios, spread

TOPIC = "build"
BUILDERS = 4
REQUIRED_RATIO, REQUIRED_EDGES_PER_S = 0.8, 15_000.0

METHOD = f"""\
The graphs of `layered` ({LAYER} nodes a layer, {EDGES_PER_NODE} edges a node). A held DAG is created with
all nodes and no edge; then {BUILDERS} builders add the edges, which stand in random order, in calls of up
to 1,000 (fewer where that leaves a builder without a call). Edges per second count from the first call to
the last answer; every call checks for cycles. The DAG is cancelled afterwards, which is not counted. A
round builds five DAGs of 1,000 nodes, one after another, one of 20,000, and one more of 20,000 whose nodes come
in random order, too: then the order of nodes that edges are checked against says nothing at first."""


async def run(bench: Bench) -> Outcome:
    """Measure both sizes in turns."""
    outcome = Outcome("build", METHOD)
    plan = bench.plan
    sizes = [size_of(plan.sized(1_000, 200), plan.sized(5, 1)), size_of(plan.sized(20_000, 600), 1)]
    keys = list(sizes[1].graph.keys)
    random.Random(0).shuffle(keys)
    sizes.append(Size(replace(sizes[1].graph, keys=tuple(keys)), 1))
    names = [*(f"{size.nodes:,} nodes" for size in sizes[:2]), f"{len(keys):,} nodes in random order"]
    bench.progress.begin("build", plan.rounds * len(sizes))
    builders = [Builder(bench.stack.dag_url, TOPIC) for _ in range(BUILDERS)]
    await build(builders, sizes[0], seed=0)
    for turn in range(plan.rounds):
        for size in sizes if turn % 2 == 0 else sizes[::-1]:
            await _measure(bench, outcome, builders, size, seed=turn)
            bench.progress.step(f"{names[sizes.index(size)]}: {size.run[-1]:,.0f} edges/s")
    for builder in builders:
        builder.close()
    for name, size in zip(names, sizes, strict=True):
        outcome.add(f"{name}: nodes without edges", "nodes/s", size.whole)
        outcome.add(f"{name}: edges afterwards", "edges/s", size.run, size.cost)
    rate = ratios(sizes[1].run, sizes[0].run)
    outcome.require_at_least("edge rate at 20,000 nodes / at 1,000", rate, REQUIRED_RATIO)
    large = spread(sizes[1].run)
    outcome.require_at_least("edges into 20,000 nodes", large, REQUIRED_EDGES_PER_S, "edges/s")
    return outcome


async def _measure(bench: Bench, outcome: Outcome, builders: Sequence[Builder], size: Size, *, seed: int) -> None:
    before = bench.stack.meter.read()
    times = [await build(builders, size, seed=seed * 10 + i) for i in range(size.dags)]
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    edges = len(size.graph.edges) * size.dags
    size.cost.add(busy, edges)
    size.whole.append(size.nodes * size.dags / sum(nodes_s for nodes_s, _ in times))
    size.run.append(edges / sum(edges_s for _, edges_s in times))


async def build(builders: Sequence[Builder], size: Size, *, seed: int) -> tuple[float, float]:
    """Build one DAG; the seconds for its nodes and for its edges."""
    edges = shuffled(size.graph, seed)
    calls = chunks(edges, min(CALL_MAX, -(-len(edges) // len(builders))))
    begun = time.perf_counter()
    dag = await builders[0].create_nodes(size.graph)
    nodes_made = time.perf_counter()
    left = iter(calls)
    await asyncio.gather(*(_add(builder, dag, left) for builder in builders))
    ended = time.perf_counter()
    await builders[0].cancel(dag)
    return nodes_made - begun, ended - nodes_made


async def _add(builder: Builder, dag: str, left: Iterator[Sequence[Edge]]) -> None:
    for call in left:
        await builder.add_edges(dag, call)
