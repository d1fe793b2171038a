"""A layered random graph of 1,000 and of 100,000 nodes: does a node cost more where there are more of them?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, layered
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import ratios
from benchmarks.workers import Workers

TOPIC = "layered"
LAYER, EDGES_PER_NODE = 50, 3
NODE_RATIO, EDGE_RATIO, LIFE_RATIO, RSS_MIB = 0.8, 0.8, 0.2, 250.0

METHOD = f"""\
Layers of {LAYER} nodes, each node waiting for {EDGES_PER_NODE} of the layer above, chosen at random. The DAG is
created held, in calls of 1,000 nodes with their edges, then released; 4 connections dequeue up to 100 items by
long poll and ack them at once. `create to end` counts everything, `release to end` only the run, `edges into
new nodes` from the first create call to the answer of the last. A round runs five DAGs of 1,000 nodes, one
after another, and one of 100,000, and one slice of the queue's own full cycle with batches of 100; ratios are
taken within rounds. Memory is the resident memory of the DAG service at the end."""


@dataclass
class Size:
    """One graph and what was measured of it, a value per round."""

    graph: Graph
    dags: int
    whole: list[float] = field(default_factory=list)
    run: list[float] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)

    @property
    def nodes(self) -> int:
        return len(self.graph.keys)


async def run(bench: Bench) -> Outcome:
    """Measure both sizes and the queue's plain cycle in turns."""
    outcome = Outcome("layered", METHOD)
    plan = bench.plan
    sizes = [size_of(plan.sized(1_000, 200), plan.sized(5, 1)), size_of(plan.sized(100_000, 600), 1)]
    bench.progress.begin("layered", plan.rounds * len(sizes))
    builder = Builder(bench.stack.dag_url, TOPIC)
    plain: list[float] = []
    async with (
        Workers(bench.stack, 4, 100, ["layered-plain"]) as workers,
        Consumers(bench.stack.queue_url, TOPIC),
    ):
        await run_held(builder, sizes[0].graph)
        for turn in range(plan.rounds):
            for size in sizes if turn % 2 == 0 else sizes[::-1]:
                await _measure(bench, outcome, builder, size)
            done, _ = await bench.slice(outcome, workers.cycles())
            plain.append(max(done.items, 1) / done.elapsed_s)
    builder.close()
    _report(bench, outcome, sizes, plain)
    return outcome


def _report(bench: Bench, outcome: Outcome, sizes: list[Size], plain: list[float]) -> None:
    for size in sizes:
        outcome.add(f"{size.nodes:,} nodes, create to end", "nodes/s", size.whole, size.cost)
        outcome.add(f"{size.nodes:,} nodes, release to end", "nodes/s", size.run)
        outcome.add(f"{size.nodes:,} nodes, edges into new nodes", "edges/s", size.edges)
    outcome.add("the queue's full cycle, batch 100, 4 clients", "items/s", plain)
    rss_mib = outcome.add("DAG service", "MiB", [bench.stack.meter.rss_mib("dag")])
    small, large = sizes
    whole, edges = ratios(large.whole, small.whole), ratios(large.edges, small.edges)
    outcome.add("release to end, large / small", "ratio", ratios(large.run, small.run).values)
    outcome.require_at_least("node rate at 100,000 nodes / at 1,000", whole, NODE_RATIO)
    outcome.require_at_least("rate of edges into new nodes at 100,000 nodes / at 1,000", edges, EDGE_RATIO)
    life = ratios(small.whole, plain)
    outcome.require_at_least("full life of a node / the queue's full cycle", life, LIFE_RATIO)
    outcome.require_below("memory of the DAG service", rss_mib, RSS_MIB, "MiB")


def size_of(nodes: int, dags: int) -> Size:
    """The layered graph of so many nodes, to be run `dags` times a round."""
    return Size(layered(nodes, layer=LAYER, edges_per_node=EDGES_PER_NODE, seed=nodes), dags)


async def _measure(bench: Bench, outcome: Outcome, builder: Builder, size: Size) -> None:
    wal_from = await bench.stack.wal_bytes()
    before = bench.stack.meter.read()
    times = [await run_held(builder, size.graph) for _ in range(size.dags)]
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    done = size.nodes * size.dags
    size.cost.add(busy, done, await bench.stack.wal_bytes() - wal_from)
    size.whole.append(done / sum(whole_s for whole_s, _ in times))
    size.run.append(done / sum(run_s for _, run_s in times))
    size.edges.append(len(size.graph.edges) * size.dags / sum(whole_s - run_s for whole_s, run_s in times))
    bench.progress.step(f"{size.nodes:,} nodes: {size.whole[-1]:,.0f} nodes/s, released {size.run[-1]:,.0f}")


async def run_held(builder: Builder, graph: Graph) -> tuple[float, float]:
    """Build a DAG under a hold, release it, wait for its end; the seconds of all of it, and from the release."""
    begun = time.perf_counter()
    dag = await builder.create(graph, hold=True)
    released = time.perf_counter()
    await builder.release(dag)
    await builder.finish(dag, len(graph.keys))
    ended = time.perf_counter()
    return ended - begun, ended - released
