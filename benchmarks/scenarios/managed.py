"""What a user of `App` drives: flows of calls with results, and the result of one job, each by a process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed
from benchmarks.peers.process import DAGS, open_peers
from benchmarks.spread import percentile, ratios, spread

ROOT = Path(__file__).parents[2]
NAMESPACE = "managed"
CALLERS, JOBS = 32, 200
# 10,000,000 jobs a day.
FLOWS_PER_S = 116.0
RESULT_RATIO, ENQUEUE_RATIO, CYCLE_RATIO, LOGGED_RATIO, PEER_RATIO = 4.0, 1.3, 0.8, 0.95, 0.5
# How a cycle goes: by a raw worker, through `App`, and that with a thousand lines logged a second.
WAYS = ("worker", "app", "logged")
PEERS = tuple(peer for peer in DAGS if peer.name.startswith(("Celery", "DBOS")))

METHOD = """\
Flows of ten jobs: one gives a list, eight take an element of it each, the last one adds up what they gave, and the
result is asked for. 32 coroutines of one process send one flow after another; a worker of the same app is another
process. Then one job that does nothing, from `enqueue` to `result`, in turns with `Client.enqueue_one` and with an
`enqueue` that keeps no result; and the same of peers (`--peers`), each with a worker of its own: a task of Celery
with its result in Redis, from `delay` to `get`, and a child workflow of DBOS through its queue. Last, jobs a
second from being sent to being done in one process that sends and works, without results: by a raw `Worker`,
through `App`, and through `App` while its jobs log a thousand lines a second, which are kept."""


async def run_managed(bench: Bench) -> Outcome:
    """Flows a second, the times of a result and of a typed call, and what `App` and its logs cost a worker."""
    outcome = Outcome("managed", METHOD)
    rates: list[float] = []
    p50s: dict[str, list[float]] = {"result": [], "call": [], "enqueue": []}
    cycles: dict[str, list[float]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        peers = await open_peers(bench, PEERS, outcome, stack)
        of_peers: dict[str, list[float]] = {name: [] for name in peers}
        bench.progress.begin("managed", bench.plan.rounds * (2 + len(WAYS) + len(peers)))
        for number in range(bench.plan.rounds):
            await _flows(bench, outcome, rates, warms=number == 0, p50s=p50s)
            for name, running in peers.items():
                answer = await running.answer(bench, outcome, do="results", jobs=bench.plan.sized(JOBS, 10))
                if answer is not None:
                    of_peers[name].append(percentile(answer["results_ms"], 0.5))
                bench.progress.step(name)
            for place in range(len(WAYS)):
                way = WAYS[(number + place) % len(WAYS)]
                found = await _ask(
                    bench, do="cycle", through=way, warm_s=bench.plan.warmup_s, seconds=bench.plan.slice_s
                )
                cycles[way].append(found["rate"])
                bench.progress.step(f"{way}: {found['rate']:,.0f} jobs/s")
    _tell(outcome, rates, p50s)
    _tell_cycles(outcome, cycles)
    for name, values in of_peers.items():
        if len(values) == len(p50s["result"]):
            outcome.add(f"{name}: the same, p50", "ms", values)
            outcome.require_below(f"result of a job / {name}", ratios(p50s["result"], values), PEER_RATIO)
    return outcome


async def _flows(
    bench: Bench, outcome: Outcome, rates: list[float], *, warms: bool, p50s: dict[str, list[float]]
) -> None:
    """One round of flows, and of single results, with a worker that works for nothing else."""
    callers, jobs = bench.plan.sized(CALLERS, 4), bench.plan.sized(JOBS, 10)
    async with _worker(bench):
        if warms:
            await _ask(bench, do="flows", callers=callers, seconds=bench.plan.warmup_s)
        before = bench.stack.meter.read()
        found = await _ask(bench, do="flows", callers=callers, seconds=bench.plan.slice_s)
        bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
        rates.append(found["rate"])
        bench.progress.step(f"{rates[-1]:,.0f} flows/s")
        found = await _ask(bench, do="results", jobs=jobs)
        for what, values in p50s.items():
            values.append(percentile(found[what], 0.5))
        bench.progress.step(f"a result: {p50s['result'][-1]:.2f} ms, a call {p50s['call'][-1]:.2f} ms")


def _tell(outcome: Outcome, rates: list[float], p50s: dict[str, list[float]]) -> None:
    outcome.add("flows of ten jobs with results, 32 callers", "flows/s", rates)
    outcome.add("a job that does nothing, enqueue to result, p50", "ms", p50s["result"])
    outcome.add("an enqueue of a typed call without a result, p50", "ms", p50s["enqueue"])
    outcome.add("one enqueue of an item, p50", "ms", p50s["call"])
    outcome.require_at_least("flows of ten jobs a second", spread(rates), FLOWS_PER_S)
    outcome.require_below("result of a job / one call", ratios(p50s["result"], p50s["call"]), RESULT_RATIO)
    outcome.require_below("typed enqueue / one call", ratios(p50s["enqueue"], p50s["call"]), ENQUEUE_RATIO)


def _tell_cycles(outcome: Outcome, cycles: dict[str, list[float]]) -> None:
    outcome.add("jobs sent and done by a raw worker", "jobs/s", cycles["worker"])
    outcome.add("jobs sent and done through App", "jobs/s", cycles["app"])
    outcome.add("jobs sent and done through App, 1,000 lines a second logged", "jobs/s", cycles["logged"])
    through = ratios(cycles["app"], cycles["worker"])
    outcome.require_at_least("cycle of a job, through App / by a raw worker", through, CYCLE_RATIO)
    logged = ratios(cycles["logged"], cycles["app"])
    outcome.require_at_least("through App, 1,000 lines a second logged / none", logged, LOGGED_RATIO)


@asynccontextmanager
async def _worker(bench: Bench) -> AsyncIterator[None]:
    process = await _start(bench, do="serve")
    try:
        yield
        await _end(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ask(bench: Bench, **asked: Any) -> dict[str, Any]:
    process = await _start(bench, **asked)
    try:
        return await _end(process)
    finally:
        if process.returncode is None:
            process.kill()


async def _start(bench: Bench, **asked: Any) -> asyncio.subprocess.Process:
    asked |= {"queue_url": bench.stack.queue_url, "dag_url": bench.stack.dag_url, "namespace": NAMESPACE}
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "benchmarks.managed_program", json.dumps(asked))
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)


async def _end(process: asyncio.subprocess.Process) -> dict[str, Any]:
    said, _ = await process.communicate(b"")  # which also ends its input
    if process.returncode:
        raise PeerFailed(f"the process of the app ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
