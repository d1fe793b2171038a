"""What a user of `App` drives: flows of calls with results, and the result of one job, each by a process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.machine import Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed
from benchmarks.spread import percentile, ratios

ROOT = Path(__file__).parents[2]
NAMESPACE = "managed"
CALLERS, JOBS = 32, 300
# 10,000,000 jobs a day.
FLOWS_PER_S = 116.0
RESULT_RATIO, ENQUEUE_RATIO = 4.0, 1.3

METHOD = """\
Flows of ten jobs: one gives a list, eight take an element of it each, the last one adds up what they gave, and the
result is asked for. 32 coroutines of one process send one flow after another; a worker of the same app is another
process. Then one job that does nothing, from `enqueue` to `result`, in turns with `Client.enqueue_one` and with an
`enqueue` that keeps no result."""


async def run_managed(bench: Bench) -> Outcome:
    """Flows a second, and the times of a result and of a typed call."""
    outcome = Outcome("managed", METHOD)
    callers, jobs = bench.plan.sized(CALLERS, 4), bench.plan.sized(JOBS, 10)
    bench.progress.begin("managed", bench.plan.rounds * 2)
    rates: list[float] = []
    p50s: dict[str, list[float]] = {"result": [], "call": [], "enqueue": []}
    async with _worker(bench):
        await _ask(bench, do="flows", callers=callers, seconds=bench.plan.warmup_s)
        for _ in range(bench.plan.rounds):
            before = bench.stack.meter.read()
            found = await _ask(bench, do="flows", callers=callers, seconds=bench.plan.slice_s)
            bench.watch(outcome, Meter.between(before, bench.stack.meter.read()))
            rates.append(found["rate"])
            bench.progress.step(f"{rates[-1]:,.0f} flows/s")
            found = await _ask(bench, do="results", jobs=jobs)
            for what, values in p50s.items():
                values.append(percentile(found[what], 0.5))
            bench.progress.step(f"a result: {p50s['result'][-1]:.2f} ms, a call {p50s['call'][-1]:.2f} ms")
    outcome.add(f"flows of ten jobs with results, {callers} callers", "flows/s", rates)
    outcome.add("a job that does nothing, enqueue to result, p50", "ms", p50s["result"])
    outcome.add("an enqueue of a typed call without a result, p50", "ms", p50s["enqueue"])
    outcome.add("one enqueue of an item, p50", "ms", p50s["call"])
    outcome.require_at_least("flows of ten jobs a second", rates, FLOWS_PER_S)
    outcome.require_below("result of a job / one call", ratios(p50s["result"], p50s["call"]), RESULT_RATIO)
    outcome.require_below("typed enqueue / one call", ratios(p50s["enqueue"], p50s["call"]), ENQUEUE_RATIO)
    return outcome


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
