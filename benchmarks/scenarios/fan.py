"""One node, then 998 at once, then one: nodes per second from create to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.graphs import Graph, fan
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.process import DAGS, open_peers
from benchmarks.runs import Builder, Consumers
from benchmarks.spread import ratios
from benchmarks.workers import Workers

TOPIC = "fan"
WIDTH = 998
# DBOS 3.4.0, 998 steps gathered in one workflow on a machine like this one; the median of three runs.
DBOS_NODES_PER_S = 171.0
DBOS_RATIO, FLOWS_RATIO, LIFE_RATIO = 10.0, 1.0, 0.2
# Callers, where several DAGs run at once, as several batches do in the queue's own cycle.
CALLERS = 4

METHOD = f"""\
One create call with all nodes and edges; 4 connections dequeue up to 100 items by long poll and ack them at once.
Counted from sending the create call to the answer of `wait`. Then {CALLERS} callers do so at once, each several
times, and the queue's own full cycle, with batches of 100 by {CALLERS} clients, has a slice. Peers (`--peers`)
run in turns with ours on the same server: DBOS gathers the steps in one workflow; BullMQ flows have one parent
and {WIDTH} children, for a flow is a tree; Celery runs a task and then a chord; pg-boss takes the same graph as
ours. Without `--peers`, DBOS stands for {DBOS_NODES_PER_S:.0f} nodes/s, which it made on a machine
of the same kind."""


async def run(bench: Bench) -> Outcome:
    """Measure fans, ours and the peers' in turns."""
    outcome = Outcome("fan", METHOD)
    graph, repeats = fan(bench.plan.sized(WIDTH, 98)), bench.plan.sized(3, 1)
    width = len(graph.keys) - 2
    bench.progress.begin("fan", bench.plan.rounds)
    rates: list[float] = []
    several: list[float] = []
    plain: list[float] = []
    peer_rates: dict[str, list[float]] = {}
    cost = Cost()
    builders = [Builder(bench.stack.dag_url, TOPIC) for _ in range(CALLERS)]
    async with (
        Workers(bench.stack, CALLERS, 100, ["fan-plain"]) as workers,
        Consumers(bench.stack.queue_url, TOPIC),
        AsyncExitStack() as stack,
    ):
        peers = await open_peers(bench, DAGS, outcome, stack)
        await run_once(builders[0], graph)
        for _ in range(bench.plan.rounds):
            wal_from = await bench.stack.wal_bytes()
            before = bench.stack.meter.read()
            elapsed_s = sum([await run_once(builders[0], graph) for _ in range(repeats)])
            busy = Meter.between(before, bench.stack.meter.read())
            bench.watch(outcome, busy)
            cost.add(busy, len(graph.keys) * repeats, await bench.stack.wal_bytes() - wal_from)
            rates.append(len(graph.keys) * repeats / elapsed_s)
            several.append(await run_several(builders, graph, repeats))
            done, _ = await bench.slice(outcome, workers.cycles())
            plain.append(max(done.items, 1) / done.elapsed_s)
            for name, running in list(peers.items()):
                answer = await running.answer(bench, outcome, do="fan", width=width)
                if answer is None:
                    del peers[name]
                    peer_rates.pop(name, None)
                    continue
                peer_rates.setdefault(name, []).append(answer["nodes"] / answer["seconds"])
            shown = "".join(f", {name} {values[-1]:,.0f}" for name, values in peer_rates.items())
            bench.progress.step(f"{rates[-1]:,.0f} nodes/s{shown}")
    for one in builders:
        one.close()
    name = f"1 -> {width} -> 1"
    outcome.add(name, "nodes/s", rates, cost)
    for peer, values in peer_rates.items():
        outcome.add(f"{name}, {peer}", "nodes/s", values)
    outcome.add(f"{name}, {CALLERS} at once", "nodes/s", several)
    outcome.add(f"the queue's full cycle, batch 100, {CALLERS} clients", "items/s", plain)
    life = ratios(several, plain)
    outcome.require_at_least("full life of a node / the queue's full cycle", life, LIFE_RATIO)
    _require(outcome, rates, peer_rates)
    return outcome


def _require(outcome: Outcome, rates: list[float], peers: dict[str, list[float]]) -> None:
    dbos = peers.get("DBOS", [DBOS_NODES_PER_S] * len(rates))
    outcome.require_at_least("1 -> 998 -> 1, node rate / DBOS", ratios(rates, dbos), DBOS_RATIO)
    for peer, values in peers.items():
        if peer.startswith("BullMQ"):
            what = f"1 -> 998 -> 1, node rate / {peer}"
            outcome.require_at_least(what, ratios(rates, values), FLOWS_RATIO)


async def run_once(builder: Builder, graph: Graph) -> float:
    """Run one DAG from create to end; the seconds it took."""
    begun = time.perf_counter()
    dag = await builder.create(graph)
    await builder.finish(dag, len(graph.keys))
    return time.perf_counter() - begun


async def run_several(builders: Sequence[Builder], graph: Graph, repeats: int) -> float:
    """Each caller runs so many DAGs, one after another; nodes per second of all."""

    async def run(builder: Builder) -> None:
        for _ in range(repeats):
            await run_once(builder, graph)

    begun = time.perf_counter()
    await asyncio.gather(*(run(builder) for builder in builders))
    return len(graph.keys) * repeats * len(builders) / (time.perf_counter() - begun)
