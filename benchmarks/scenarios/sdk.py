"""What a user drives: the SDK's worker and client, each in processes of its own, as `python -m` would run them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from benchmarks.bench import Bench
from benchmarks.load import Http
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed
from benchmarks.program import run_program
from benchmarks.scenarios.chain import run_chain
from benchmarks.spread import percentile, ratios
from benchmarks.stack import open_site
from benchmarks.workers import Workers

# Slots, whether handlers are plain functions, processes, and jobs.
CELLS = (
    (1, False, 1, 2_000),
    (10, False, 1, 10_000),
    (100, False, 1, 20_000),
    (10, False, 2, 10_000),
    (100, False, 2, 20_000),
    (10, True, 1, 5_000),
    (16, True, 1, 5_000),
    (10, True, 2, 5_000),
)
SMALL_CELLS = (CELLS[1], CELLS[3], CELLS[5])
# What a chain has, beside a worker.
KINDS = ("usual", "outputs", "quotas", "priority", "plain functions", "apart")
SMALL_KINDS = ("usual", "outputs", "apart")
# DAGs of 1 -> width -> 1: width, how many, callers, and how many in a quick run.
GRAPHS = {"1 -> 998 -> 1": (998, 3, 1, 1), "1 -> 8 -> 1": (8, 300, 16, 16)}
STEP_RATIO, OUTPUTS_RATIO, TAIL_RATIO = 1.2, 1.5, 4.0
CALL_RATIO, CROWD_RATIO = 1.25, 0.7

WORKER_METHOD = """\
`headgate.Worker` in one process, or in two, as `asyncio.run` runs it, works a topic empty whose jobs are there
before it starts. Handlers do nothing. The rate is that of all processes together, from the first end of a handler
to the last. Coroutine handlers run in the worker's loop, plain functions in its threads. No prefetch is asked for:
the worker takes as many ahead as it thinks right."""

STEPS_METHOD = """\
A chain of 100 nodes by a `headgate.Worker` with one slot in a process of its own: a step is the time from one
handler's start to the next one's. `outputs`: each node gives one and is given its upstream's. `quotas`: in a
namespace that has some. `priority`: of a DAG that inherits. `plain functions`: in the worker's threads. `apart`:
queue and DAG shards have no database in common, as on servers of their own. Beside it, in the same round, the step
of `chain`: a bare unnamed consumer on two connections."""

GRAPHS_METHOD = """\
DAGs of 1 -> 998 -> 1, one after another by one caller, and of 1 -> 8 -> 1, by 16 callers at once: each is created
by one call of the SDK and waited for by another. In the same process a `headgate.Worker` with 100 slots runs their
nodes, whose handlers do nothing. What is beside `usual` is as in `steps`; `priority` has the critical path, too.
Nodes count from the first create call to the last end."""

CLIENT_METHOD = """\
One `Client.enqueue_one` after another in a process of its own, in turns with the same call by a bare socket on one
connection; then 64 callers of one `AsyncClient`, each going through enqueue, dequeue and ack of one item, beside
64 connections of this program that do the same."""


async def run_worker(bench: Bench) -> Outcome:
    """Jobs a second."""
    outcome = Outcome("worker", WORKER_METHOD)
    cells = SMALL_CELLS if bench.plan.small else CELLS
    bench.progress.begin("worker", bench.plan.rounds * len(cells))
    rates: dict[str, list[float]] = {}
    for number in range(bench.plan.rounds):
        for slots, plain, processes, full in cells:
            jobs, topic = bench.plan.sized(full, 200), f"worker-{number}-{slots}-{plain}-{processes}"
            rate = await drained(bench, outcome, topic, jobs=jobs, slots=slots, plain=plain, processes=processes)
            kind = "plain functions" if plain else "coroutines"
            name = f"{slots} slots, {kind}, {processes} process{'es' if processes > 1 else ''}"
            rates.setdefault(name, []).append(rate)
            bench.progress.step(f"{name}: {rate:,.0f} jobs/s")
    for name, values in rates.items():
        outcome.add(name, "jobs/s", values)
    return outcome


async def drained(
    bench: Bench, outcome: Outcome, topic: str, *, jobs: int, slots: int, plain: bool, processes: int
) -> float:
    """The rate at which workers do jobs that are there before they start."""
    await _fill(bench, topic, jobs)
    before = bench.stack.meter.read()
    asked = {"do": "work", "topic": topic, "slots": slots, "plain": plain}
    answers = await asyncio.gather(*(_ask(bench, **asked) for _ in range(processes)))
    bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
    done = sum(answer["jobs"] for answer in answers)
    if done != jobs:
        raise PeerFailed(f"{done} of {jobs} jobs were done")
    ended_s = [at for answer in answers for at in answer["ended_s"]]
    return done / (max(ended_s) - min(ended_s))


async def run_steps(bench: Bench) -> Outcome:
    """The time of a step."""
    outcome = Outcome("steps", STEPS_METHOD)
    async with open_site(bench.stack, "steps_apart", is_apart=True) as apart:
        return await _steps(bench, outcome, bench.on(apart))


async def _steps(bench: Bench, outcome: Outcome, apart: Bench) -> Outcome:
    nodes = bench.plan.sized(100, 20)
    await _limit(bench, "limited")
    kinds = SMALL_KINDS if bench.plan.small else KINDS
    bench.progress.begin("steps", bench.plan.rounds * (len(kinds) + 1))
    steps: dict[str, list[list[float]]] = {}
    for number in range(bench.plan.rounds):
        steps.setdefault("bare", []).append(await run_chain(bench, nodes))
        bench.progress.step(f"bare: p50 {percentile(steps['bare'][-1], 0.5):.2f} ms")
        for kind in kinds:
            asked = {"do": "chain", "topic": f"steps-{number}-{KINDS.index(kind)}", "nodes": nodes} | _of(
                bench, kind
            )
            before = bench.stack.meter.read()
            found = (await _ask(apart if kind == "apart" else bench, **asked))["steps_ms"]
            bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
            steps.setdefault(kind, []).append(found)
            bench.progress.step(f"{kind}: p50 {percentile(found, 0.5):.2f} ms")
    p50s = {kind: [percentile(part, 0.5) for part in rounds] for kind, rounds in steps.items()}
    for kind, rounds in steps.items():
        name = "bare unnamed consumer" if kind == "bare" else f"Worker, {kind}"
        outcome.add(f"{name}: step, p50", "ms", p50s[kind])
        outcome.add(f"{name}: step, p99", "ms", [percentile(part, 0.99) for part in rounds])
    p99s = [percentile(part, 0.99) for part in steps["usual"]]
    outcome.require_below("step, Worker / bare", ratios(p50s["usual"], p50s["bare"]), STEP_RATIO)
    outcome.require_below("step, Worker with outputs / bare", ratios(p50s["outputs"], p50s["bare"]), OUTPUTS_RATIO)
    outcome.require_below("step, Worker, p99 / p50", ratios(p99s, p50s["usual"]), TAIL_RATIO)
    return outcome


async def run_graphs(bench: Bench) -> Outcome:
    """Nodes a second."""
    outcome = Outcome("graphs", GRAPHS_METHOD)
    await _limit(bench, "limited")
    kinds = SMALL_KINDS[::2] if bench.plan.small else KINDS
    bench.progress.begin("graphs", bench.plan.rounds * len(kinds) * len(GRAPHS))
    rates: dict[str, list[float]] = {}
    async with open_site(bench.stack, "graphs_apart", is_apart=True) as site:
        for number in range(bench.plan.rounds):
            for name, (full_width, full, callers, few) in GRAPHS.items():
                width, dags = bench.plan.sized(full_width, min(full_width, 98)), bench.plan.sized(full, few)
                for kind in kinds:
                    asked = {"do": "graphs", "topic": f"graphs-{number}-{width}-{KINDS.index(kind)}", "slots": 100}
                    asked |= {"width": width, "dags": dags, "callers": callers} | _of(bench, kind)
                    before = bench.stack.meter.read()
                    found = await _ask(bench.on(site) if kind == "apart" else bench, **asked)
                    bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
                    rates.setdefault(f"{name}: {kind}", []).append(found["rate"] * (width + 2))
                    bench.progress.step(f"{name}, {kind}: {rates[f'{name}: {kind}'][-1]:,.0f} nodes/s")
    for name, values in rates.items():
        outcome.add(name, "nodes/s", values)
    return outcome


def _of(bench: Bench, kind: str) -> dict[str, Any]:
    """What a process is asked for one of `KINDS`."""
    asked: dict[str, Any] = {"settle_s": 0.2 if bench.plan.small else 1.0, "plain": kind == "plain functions"}
    asked |= {"outputs": kind == "outputs", "priority": kind == "priority"}
    return asked | ({"namespace": "limited"} if kind == "quotas" else {})


async def run_client(bench: Bench) -> Outcome:
    """The time of a call."""
    outcome = Outcome("client", CLIENT_METHOD)
    calls, callers = bench.plan.sized(500, 20), bench.plan.sized(64, 8)
    bench.progress.begin("client", bench.plan.rounds * 3)
    p50s: dict[str, list[float]] = {"sdk": [], "bare": []}
    rates: dict[str, list[float]] = {"sdk": [], "bare": []}
    async with Workers(bench.stack, callers, 1, ["client-bare"]) as bare:
        await bench.warm_up(bare.cycles())
        for number in range(bench.plan.rounds):
            found = await _ask(bench, do="calls", topic=f"client-{number}", calls=calls)
            for who in ("sdk", "bare"):
                p50s[who].append(percentile(found[who], 0.5))
            bench.progress.step(f"one call: {p50s['sdk'][-1]:.2f} ms, bare {p50s['bare'][-1]:.2f} ms")
            asked = {"topic": "client-crowd", "callers": callers, "seconds": bench.plan.slice_s}
            rates["sdk"].append((await _ask(bench, do="crowd", **asked))["rate"])
            bench.progress.step(f"{callers} callers: {rates['sdk'][-1]:,.0f} cycles/s")
            done, _ = await bench.slice(outcome, bare.cycles())
            rates["bare"].append(done.items_per_s)
            bench.progress.step(f"{callers} connections, bare: {done.items_per_s:,.0f} cycles/s")
        await bare.drain()
    for who, name in (("sdk", "SDK"), ("bare", "bare")):
        outcome.add(f"one blocking enqueue, {name}, p50", "ms", p50s[who])
        outcome.add(f"{callers} at once, one item each, {name}", "cycles/s", rates[who])
    outcome.require_below("one blocking call, SDK / bare", ratios(p50s["sdk"], p50s["bare"]), CALL_RATIO)
    outcome.require_at_least("64 async callers, SDK / bare", ratios(rates["sdk"], rates["bare"]), CROWD_RATIO)
    return outcome


async def _ask(bench: Bench, **asked: Any) -> dict[str, Any]:
    """What a process of the SDK's own answers."""
    asked |= {"queue_url": bench.stack.queue_url, "dag_url": bench.stack.dag_url}
    return await run_program("benchmarks.sdk_program", asked)


async def _fill(bench: Bench, topic: str, jobs: int) -> None:
    http = Http(bench.stack.queue_url)
    try:
        for first in range(0, jobs, 1_000):
            await http.enqueue([{"topic": topic, "payload": 1}] * min(1_000, jobs - first))
    finally:
        http.close()


async def _limit(bench: Bench, namespace: str) -> None:
    """A namespace with quotas that bind nothing here."""
    async with httpx.AsyncClient() as client:
        url = f"{bench.stack.queue_url}/v1/namespaces/{namespace}"
        (await client.put(url, json={"in_flight_max": 1_000, "items_max": 1_000_000})).raise_for_status()
