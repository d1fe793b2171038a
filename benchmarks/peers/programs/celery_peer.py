"""Celery over Redis: a chain of tasks, and group -> chord for the fan. The worker is a child of this program.

Best settings found: prefork with 2 processes, prefetch 64, results in Redis, acks early as by default.
"""

import asyncio
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from celery import Celery, chord
from celery import chain as chained
from celery.contrib.testing.worker import start_worker
from lines import Load, say, serve

SETTINGS = json.loads(os.environ.get("PEER_SETTINGS") or sys.argv[1])
app = Celery("celery_peer", broker=SETTINGS["redis_url"], backend=SETTINGS["redis_url"])
app.conf.update(worker_prefetch_multiplier=64, task_default_queue="peer", broker_connection_retry_on_startup=True)


@app.task(name="link")
def link(starts: list[float]) -> list[float]:
    return [*starts, time.time()]


@app.task(name="node")
def node(_: Any = None) -> int:
    return 1


@app.task(name="last")
def last(done: list[int]) -> int:
    return len(done)


@app.task(name="job", queue="jobs", ignore_result=True)
def job(p: str, at: float | None = None) -> None:
    load.ran(at)


def put(jobs: list[dict[str, Any]]) -> None:
    for one in jobs:
        job.delay(**one)


async def send(jobs: list[dict[str, Any]]) -> None:
    await asyncio.to_thread(put, jobs)


@asynccontextmanager
async def working() -> AsyncIterator[None]:
    """A worker of threads in this process, so that its jobs can be counted."""
    made = start_worker(
        app,
        concurrency=load.concurrency,
        pool="threads",
        queues=["jobs"],
        perform_ping_check=False,
        loglevel="ERROR",
    )
    await asyncio.to_thread(made.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


load = Load(send=send, working=working, window=1_000)


async def chain(request: dict[str, Any]) -> dict[str, Any]:
    say({"begun": True})
    work = chained(link.s([]), *(link.s() for _ in range(request["nodes"] - 1)))
    starts = await asyncio.to_thread(lambda: work.apply_async().get(timeout=60, interval=0.01))
    say({"steps_ms": [(b - a) * 1000 for a, b in itertools.pairwise(starts)]})
    return {"stopped": True}


async def results(request: dict[str, Any]) -> dict[str, Any]:
    """One job that does nothing after another, from `delay` to `get`, in ms."""
    say({"begun": True})
    found: list[float] = []

    def run() -> None:
        for _ in range(request["jobs"]):
            begun = time.perf_counter()
            node.delay().get(timeout=60, interval=0.005)
            found.append((time.perf_counter() - begun) * 1000)

    await asyncio.to_thread(run)
    say({"results_ms": found})
    return {"stopped": True}


async def fan(request: dict[str, Any]) -> dict[str, Any]:
    width, count = request["width"], request.get("count", 1)
    say({"begun": True})
    begun = time.perf_counter()

    def run() -> None:
        # The first node is run before the chord's header is sent, as its own task.
        results = []
        for _ in range(count):
            node.delay().get(timeout=60, interval=0.005) if count == 1 else node.delay()
            results.append(chord((node.s() for _ in range(width)), last.s()).apply_async())
        for result in results:
            assert result.get(timeout=60, interval=0.01) == width

    await asyncio.to_thread(run)
    say({"nodes": (width + 2) * count, "seconds": time.perf_counter() - begun})
    return {"stopped": True}


async def main() -> None:
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_peer",
            "worker",
            "-c",
            "2",
            "-l",
            "ERROR",
            "-Q",
            "peer",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ],
        env={**os.environ, "PEER_SETTINGS": json.dumps(SETTINGS), "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.DEVNULL,
    )
    try:
        await asyncio.to_thread(lambda: node.delay().get(timeout=60))
        await serve(
            {"celery": importlib.metadata.version("celery")},
            {"chain": chain, "drain": load.drain, "fan": fan, "fill": load.fill, "results": results},
        )
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    asyncio.run(main())
