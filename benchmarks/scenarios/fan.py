"""One node, then 998 at once, then one: nodes per second from create to end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, fan
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers import DBOS, dbos_fan
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import ratios

TOPIC = "fan"
WIDTH = 998
# DBOS 3.4.0, 998 steps gathered in one workflow on a machine like this one; the median of three runs.
DBOS_NODES_PER_S = 171.0
REQUIRED_RATIO = 10.0

METHOD = f"""\
One create call with all nodes and edges; 4 connections dequeue up to 100 items by long poll and ack them at
once. Counted from sending the create call to the answer of `wait`. DBOS is 998 async steps gathered in one
workflow. With `--peers` it runs on the same server, in turns with ours; without, it stands for
{DBOS_NODES_PER_S:.0f} nodes/s, which it made on a machine of the same kind."""


async def run(bench: Bench) -> Outcome:
    """Measure fans, ours and the peer's in turns."""
    outcome = Outcome("fan", METHOD)
    graph, repeats = fan(bench.plan.sized(WIDTH, 98)), bench.plan.sized(3, 1)
    bench.progress.begin("fan", bench.plan.rounds)
    rates: list[float] = []
    peer_rates: list[float] = []
    cost = Cost()
    builder = Builder(bench.stack.dag_url, TOPIC)
    async with Consumers(bench.stack.queue_url, TOPIC), _peer(bench) as peer:
        await run_once(builder, graph)
        await peer(graph)
        for _ in range(bench.plan.rounds):
            before = bench.stack.meter.read()
            elapsed_s = sum([await run_once(builder, graph) for _ in range(repeats)])
            busy = Meter.between(before, bench.stack.meter.read())
            bench.watch(outcome, busy)
            cost.add(busy, len(graph.keys) * repeats)
            rates.append(len(graph.keys) * repeats / elapsed_s)
            peer_rates.append(len(graph.keys) / await peer(graph))
            bench.progress.step(f"{rates[-1]:,.0f} nodes/s, DBOS {peer_rates[-1]:,.0f}")
    builder.close()
    name = f"1 -> {len(graph.keys) - 2} -> 1"
    outcome.add(name, "nodes/s", rates, cost)
    if bench.peers:
        outcome.add(f"{name}, DBOS", "nodes/s", peer_rates, DBOS)
    outcome.require_at_least("1 -> 998 -> 1, node rate / DBOS", ratios(rates, peer_rates), REQUIRED_RATIO)
    return outcome


@asynccontextmanager
async def _peer(bench: Bench) -> AsyncIterator[Callable[[Graph], Awaitable[float]]]:
    """Runs a fan of the same width on DBOS; the seconds it took, or would have taken."""
    if not bench.peers:

        async def recorded(graph: Graph) -> float:
            return len(graph.keys) / DBOS_NODES_PER_S

        yield recorded
        return
    async with dbos_fan(bench.stack) as peer:

        async def measured(graph: Graph) -> float:
            return await peer.run(len(graph.keys) - 2)

        yield measured


async def run_once(builder: Builder, graph: Graph) -> float:
    """Run one DAG from create to end; the seconds it took."""
    begun = time.perf_counter()
    dag = await builder.create(graph)
    await builder.finish(dag, len(graph.keys))
    return time.perf_counter() - begun
