"""A graph as large as real ones get, built by many at once in random order, run complete, and checked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, chunks, shuffled, tail_heavy
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import CALL_MAX, Builder

TOPIC = "large"
BUILDERS, CONSUMERS = 8, 4
NODES, EDGES = 64_000, 257_000

METHOD = f"""\
A graph in the shape of a package archive: {NODES:,} nodes and {EDGES:,} edges, drawn from a fixed seed; a few
nodes are waited for by thousands, most by few or nobody. A held DAG is created; {BUILDERS} callers add the
nodes, then the edges, both in random order, in calls of {CALL_MAX:,}. Then it is released, and {CONSUMERS}
connections dequeue up to 100 items by long poll and ack them at once. Every delivery is checked: no node before
all that it waits for were acked, none twice, all in the end. The graph runs once."""


@dataclass
class Check:
    """What consumers saw: an order that must respect the edges, every node once."""

    upstreams: dict[str, list[str]]
    seen: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)

    def start(self, key: str) -> None:
        """A node was delivered."""
        self.seen[key] += 1
        early = [up for up in self.upstreams[key] if up not in self.acked]
        assert not early, f"{key} was delivered before {early[:3]} were acked"
        assert self.seen[key] == 1, f"{key} was delivered twice"
        # Whoever waits for this node may start as soon as the ack is sent.
        self.acked.add(key)


async def run(bench: Bench) -> Outcome:
    """Build it, run it, check it."""
    outcome = Outcome("large", METHOD)
    nodes = bench.plan.sized(NODES, 400)
    graph = tail_heavy(nodes, edges=bench.plan.sized(EDGES, 1_600), seed=nodes)
    bench.progress.begin("large", 2)
    builders = [Builder(bench.stack.dag_url, TOPIC) for _ in range(BUILDERS)]
    cost = Cost()
    wal_from, before = await bench.stack.wal_bytes(), bench.stack.meter.read()
    dag, nodes_s, edges_s = await build(builders, graph)
    bench.progress.step(f"built: {nodes / nodes_s:,.0f} nodes/s, {len(graph.edges) / edges_s:,.0f} edges/s")
    run_s = await run_checked(bench, builders[0], dag, graph)
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    cost.add(busy, nodes, await bench.stack.wal_bytes() - wal_from)
    bench.progress.step(f"run: {nodes / run_s:,.0f} nodes/s, every one once and in order")
    for builder in builders:
        builder.close()
    outcome.details["graph"] = {"nodes": nodes, "edges": len(graph.edges)}
    what = f"{nodes:,} nodes, {len(graph.edges):,} edges"
    outcome.add(f"{what}: nodes added", "nodes/s", [nodes / nodes_s])
    outcome.add(f"{what}: edges added in random order", "edges/s", [len(graph.edges) / edges_s])
    outcome.add(f"{what}: release to end", "nodes/s", [nodes / run_s])
    whole = outcome.add(f"{what}: create to end", "nodes/s", [nodes / (nodes_s + edges_s + run_s)], cost)
    outcome.add("DAG service", "MiB", [bench.stack.meter.rss_mib("dag")])
    outcome.require_at_least("64,000 nodes, 257,000 edges: complete, in order, each once", whole, 1.0, "nodes/s")
    return outcome


async def build(builders: list[Builder], graph: Graph) -> tuple[str, float, float]:
    """Build a held DAG; its id, and the seconds for its nodes and for its edges."""
    begun = time.perf_counter()
    first, *rest = chunks(shuffled_keys(graph), CALL_MAX)
    dag = await builders[0].create_nodes(Graph(tuple(first), ()))
    left_nodes = iter(rest)

    async def add_nodes(builder: Builder) -> None:
        for part in left_nodes:
            await builder.add_nodes(dag, part)

    await asyncio.gather(*(add_nodes(builder) for builder in builders))
    nodes_made = time.perf_counter()
    left_edges = iter(chunks(shuffled(graph, 1), CALL_MAX))

    async def add_edges(builder: Builder) -> None:
        for part in left_edges:
            await builder.add_edges(dag, part)

    await asyncio.gather(*(add_edges(builder) for builder in builders))
    return dag, nodes_made - begun, time.perf_counter() - nodes_made


def shuffled_keys(graph: Graph) -> list[str]:
    """The nodes in random order."""
    return [key for key, _ in shuffled(Graph((), tuple((key, "") for key in graph.keys)), 2)]


async def run_checked(bench: Bench, builder: Builder, dag: str, graph: Graph) -> float:
    """Release a DAG and consume it to its end, checking every delivery; the seconds it took."""
    check = Check(graph.upstreams())
    connections = [Http(bench.stack.queue_url) for _ in range(CONSUMERS)]

    async def consume(http: Http) -> None:
        while len(check.acked) < len(graph.keys):
            leased = await http.dequeue(TOPIC, 100, wait_s=1.0)
            for item in leased:
                check.start(item.node)
            if leased:
                await http.ack(leased)

    begun = time.perf_counter()
    await builder.release(dag)
    await asyncio.gather(*(consume(http) for http in connections))
    await builder.finish(dag, len(graph.keys))
    elapsed_s = time.perf_counter() - begun
    for http in connections:
        http.close()
    assert set(check.seen) == set(graph.keys)
    return elapsed_s
