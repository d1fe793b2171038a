"""A chain of 100 nodes, one consumer: the time of a step, beside the sum of what a step is made of."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from benchmarks.bench import Bench
from benchmarks.graphs import chain
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.parts import Parts
from benchmarks.peers.process import DAGS, Running, open_peers
from benchmarks.runs import Builder
from benchmarks.spread import percentile, ratios

TOPIC = "chain"
SUM_RATIO = 3.0
TAIL_RATIO = 3.0
DBOS_RATIO, DISPATCHED_RATIO = 1.0, 0.1
# Peers that take long for a step get a shorter chain.
SHORT = {"DBOS, child workflows through its queue": 20, "pg-boss flow": 6}

METHOD = """\
One consumer keeps a long poll open (a dequeue of one item) and acks on a second connection. A step is the
time from sending the ack of one node to having received the next node. Every round runs fresh chains of 100
nodes, then measures each part by itself on the then idle stack, with the same client. The parts, each with
its commit: the ack call of an item that has an `ack_topic`; the DAG transaction of one completion, called
in this process by the DAG service's own code on a shard; the revive call of one item; the dequeue call that
claims one ready item. Not counted: the claim and the ack of the completion item (their commits do not wait
for the disk), waking, and the network. Peers (`--peers`) run in turns with ours, a chain of the same length
(DBOS through its queue 20, pg-boss 6): a step is the time from one node's start to the next one's."""


async def run(bench: Bench) -> Outcome:
    """Measure steps and parts in turns."""
    outcome = Outcome("chain", METHOD)
    plan = bench.plan
    nodes, chains, repeats = plan.sized(100, 20), plan.sized(4, 1), plan.sized(200, 20)
    bench.progress.begin("chain", plan.rounds * 2)
    steps_ms: list[list[float]] = []
    parts_ms: dict[str, list[float]] = {}
    peer_steps: dict[str, list[list[float]]] = {}
    async with Parts(bench.stack) as parts, AsyncExitStack() as stack:
        peers = await _chains(bench, outcome, stack)
        await run_chain(bench, nodes)
        await parts.measure(repeats // 4)
        for _ in range(plan.rounds):
            before = bench.stack.meter.read()
            steps_ms.append([step for _ in range(chains) for step in await run_chain(bench, nodes)])
            bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
            bench.progress.step(f"step p50 {percentile(steps_ms[-1], 0.5):.2f} ms")
            for name, value in (await parts.measure(repeats)).items():
                parts_ms.setdefault(name, []).append(value)
            shown = ", ".join(f"{name} {values[-1]:.2f}" for name, values in parts_ms.items())
            bench.progress.step(f"parts p50, ms: {shown}")
            for name, (running, queued) in list(peers.items()):
                length = min(nodes, SHORT.get(name, nodes))
                answer = await running.answer(bench, outcome, do="chain", nodes=length, queued=queued)
                if answer is None:
                    del peers[name]
                    peer_steps.pop(name, None)
                    continue
                peer_steps.setdefault(name, []).append(answer["steps_ms"])
                bench.progress.note(f"{name}: step p50 {percentile(answer['steps_ms'], 0.5):.2f} ms")
    _report(outcome, steps_ms, parts_ms)
    _compare(outcome, steps_ms, peer_steps)
    return outcome


async def _chains(bench: Bench, outcome: Outcome, stack: AsyncExitStack) -> dict[str, tuple[Running, bool]]:
    """The peers by name, each with whether its nodes go through its queue."""
    found = {name: (running, False) for name, running in (await open_peers(bench, DAGS, outcome, stack)).items()}
    if "DBOS" in found:
        found["DBOS, child workflows through its queue"] = (found["DBOS"][0], True)
    return found


def _compare(outcome: Outcome, steps_ms: list[list[float]], peers: dict[str, list[list[float]]]) -> None:
    ours = [percentile(steps, 0.5) for steps in steps_ms]
    for name, rounds in peers.items():
        p50s = [percentile(steps, 0.5) for steps in rounds]
        outcome.add(f"step, {name}, p50", "ms", p50s)
        outcome.add(f"step, {name}, p99", "ms", [percentile(steps, 0.99) for steps in rounds])
        if name == "DBOS":
            outcome.require_below("chain step, p50 / DBOS's in-process step", ratios(ours, p50s), DBOS_RATIO)
        if name in SHORT:
            outcome.require_below(f"chain step, p50 / {name}", ratios(ours, p50s), DISPATCHED_RATIO)


def _report(outcome: Outcome, steps_ms: list[list[float]], parts_ms: dict[str, list[float]]) -> None:
    p50s = [percentile(steps, 0.5) for steps in steps_ms]
    p99s = [percentile(steps, 0.99) for steps in steps_ms]
    sums = [sum(values) for values in zip(*parts_ms.values(), strict=True)]
    outcome.add("step, p50", "ms", p50s)
    outcome.add("step, p99", "ms", p99s, "of each round")
    for name, values in parts_ms.items():
        outcome.add(f"part: {name}, p50", "ms", values)
    outcome.add("sum of the parts", "ms", sums)
    everything = [step for steps in steps_ms for step in steps]
    outcome.details["step_ms"] = {
        f"p{share * 100:g}": round(percentile(everything, share), 3) for share in (0.1, 0.5, 0.9, 0.99, 0.999, 1.0)
    }
    outcome.require_below("chain step, p50 / sum of its parts", ratios(p50s, sums), SUM_RATIO)
    outcome.require_below("chain step, p99 / p50", ratios(p99s, p50s), TAIL_RATIO)


async def run_chain(bench: Bench, nodes: int) -> list[float]:
    """Run one chain; the milliseconds of each of its steps."""
    polling, acking = Http(bench.stack.queue_url), Http(bench.stack.queue_url)
    builder = Builder(bench.stack.dag_url, TOPIC)
    steps_ms = []
    sent_s = 0.0
    try:
        poll = asyncio.create_task(polling.dequeue(TOPIC, 1, wait_s=20.0))
        dag = await builder.create(chain(nodes))
        for n in range(nodes):
            leased = await poll
            received_s = time.perf_counter()
            assert len(leased) == 1, "nothing was delivered in 20 s"
            if n:
                steps_ms.append((received_s - sent_s) * 1000)
            if n < nodes - 1:
                poll = asyncio.create_task(polling.dequeue(TOPIC, 1, wait_s=20.0))
            sent_s = time.perf_counter()
            await acking.ack(leased)
        await builder.finish(dag, nodes)
    finally:
        polling.close()
        acking.close()
        builder.close()
    return steps_ms
