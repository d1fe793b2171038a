"""One node, then 998 at once, then one: nodes per second from create to end."""

from __future__ import annotations

import time

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, fan
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import spread

TOPIC = "fan"
WIDTH = 998
# DBOS 3.4.0, 998 steps gathered in one workflow on a machine like this one; the median of three runs.
DBOS_NODES_PER_S = 171.0
REQUIRED_RATIO = 10.0

METHOD = f"""\
One create call with all nodes and edges; 4 connections dequeue up to 100 items by long poll and ack them at
once. Counted from sending the create call to the answer of `wait`. {DBOS_NODES_PER_S:.0f} nodes/s is what
DBOS 3.4.0 made of 998 async steps in one workflow (gather) on a machine of the same kind; it is not run
here."""


async def run(bench: Bench) -> Outcome:
    """Measure some fans, one after another."""
    outcome = Outcome("fan", METHOD)
    graph, repeats = fan(bench.plan.sized(WIDTH, 98)), bench.plan.sized(3, 1)
    bench.progress.begin("fan", bench.plan.rounds * repeats)
    rates: list[float] = []
    cost = Cost()
    builder = Builder(bench.stack.dag_url, TOPIC)
    async with Consumers(bench.stack.queue_url, TOPIC):
        await run_once(builder, graph)
        for _ in range(bench.plan.rounds * repeats):
            before = bench.stack.meter.read()
            elapsed_s = await run_once(builder, graph)
            busy = Meter.between(before, bench.stack.meter.read())
            bench.watch(outcome, busy)
            cost.add(busy, len(graph.keys))
            rates.append(len(graph.keys) / elapsed_s)
            bench.progress.step(f"{rates[-1]:,.0f} nodes/s")
    builder.close()
    outcome.add(f"1 -> {len(graph.keys) - 2} -> 1", "nodes/s", rates, str(cost))
    against = spread([rate / DBOS_NODES_PER_S for rate in rates])
    outcome.require_at_least("1 -> 998 -> 1, node rate / DBOS's 171 nodes/s", against, REQUIRED_RATIO)
    return outcome


async def run_once(builder: Builder, graph: Graph) -> float:
    """Run one DAG from create to end; the seconds it took."""
    begun = time.perf_counter()
    dag = await builder.create(graph)
    await builder.finish(dag, len(graph.keys))
    return time.perf_counter() - begun
