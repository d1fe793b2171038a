"""A DAG of a million nodes: does it complete, and what does a node cost there?"""

from __future__ import annotations

import time

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import layered
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import CALL_MAX, Builder, Consumers

TOPIC = "million"
NODES, LAYER, EDGES_PER_NODE = 1_000_000, 1_000, 2
RUN_S_MAX = 3_600.0
RSS_MIB = 250.0

METHOD = f"""\
{NODES:,} nodes in layers of {LAYER:,}, each waiting for {EDGES_PER_NODE} of the layer above, chosen at random. The
DAG is created held, in calls of {CALL_MAX:,} nodes with their edges, one after another, then released;
4 connections dequeue up to 100 items by long poll and ack them at once. Every node must have succeeded. The graph
runs once. Memory is the most that the DAG service ever had resident."""


async def run(bench: Bench) -> Outcome:
    """Build it, run it, count its ends."""
    outcome = Outcome("million", METHOD)
    nodes = bench.plan.sized(NODES, 600)
    graph = layered(nodes, layer=min(LAYER, nodes // 4), edges_per_node=EDGES_PER_NODE, seed=nodes)
    builder = Builder(bench.stack.dag_url, TOPIC)
    bench.progress.begin("million", -(-nodes // CALL_MAX) + 1)
    wal_from, before = await bench.stack.wal_bytes(), bench.stack.meter.read()
    begun_s = time.perf_counter()
    dag = await builder.create(graph, hold=True, after_call=lambda: bench.progress.step("added"))
    built_s = time.perf_counter() - begun_s
    bench.progress.note(f"built: {nodes / built_s:,.0f} nodes/s")
    async with Consumers(bench.stack.queue_url, TOPIC):
        await builder.release(dag)
        await builder.finish(dag, nodes, wait_s=RUN_S_MAX)
    run_s = time.perf_counter() - begun_s - built_s
    bench.progress.step(f"run: {nodes / run_s:,.0f} nodes/s")
    busy = Meter.between(before, bench.stack.meter.read())
    bench.watch(outcome, busy)
    builder.close()
    cost = Cost()
    cost.add(busy, nodes, await bench.stack.wal_bytes() - wal_from)
    what = f"{nodes:,} nodes, {len(graph.edges):,} edges"
    outcome.add(f"{what}: added", "nodes/s", [nodes / built_s])
    outcome.add(f"{what}: release to end", "nodes/s", [nodes / run_s])
    whole = outcome.add(f"{what}: create to end", "nodes/s", [nodes / (built_s + run_s)], cost)
    peak_mib = outcome.add("DAG service", "MiB", [bench.stack.meter.peak_rss_mib("dag")])
    outcome.require_at_least("a million nodes: complete", whole, 1.0, "nodes/s")
    outcome.require_below("memory of the DAG service", peak_mib, RSS_MIB, "MiB")
    return outcome
