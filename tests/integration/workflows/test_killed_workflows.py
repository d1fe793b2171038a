"""The examples of workflows, all at once, with a kill -9 of their worker or of a service half-way."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from examples import unified
from headgate import AsyncClient, HeadgateError
from services.local.postgres import VOLATILE
from services.local.settings import LocalSettings
from services.local.stack import ROOT, Stack
from tests.support.ports import free_port

T = TypeVar("T")

RUNS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "order-1": (
        "order",
        {"items": ["book", "lamp"], "total": 1_200, "currency": "USD"},
        {"state": "shipped", "receipt": "paid 600.0", "label": "label of 2"},
    ),
    "app-1": ("app-submission", "1.0", {"version": "1.0", "state": "published", "superseded": []}),
    "cluster-1": (
        "cluster",
        {"name": "web", "machines": 3},
        {"state": "ready", "machines": [f"vm on disk of web-{number}" for number in range(3)]},
    ),
    "backfill-1": ("backfill", {"first": "2030-01-01", "last": "2030-01-12"}, {"failed": []}),
}
SIGNALS = {"order-1": ("approval", {"yes": True}), "app-1": ("review", {"accepted": True})}


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """The same call until a service answers it."""
    while True:
        try:
            return await call()
        except HeadgateError as error:
            if error.status is not None and 400 <= error.status < 500 and error.status != 404:
                raise
            await asyncio.sleep(0.1)


async def begin_worker(stack: Stack) -> asyncio.subprocess.Process:
    urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}
    program = (sys.executable, "-m", "tests.support.example_worker")
    return await asyncio.create_subprocess_exec(*program, cwd=ROOT, env={**os.environ, **urls})


@pytest.mark.parametrize("victim", ["worker", "queue", "dag"])
async def test_the_examples_survive_a_kill_half_way(tmp_path: Path, victim: str) -> None:
    ports = {name: free_port() for name in ("queue_port", "dag_port", "postgres_port", "redis_port")}
    settings = LocalSettings(data_dir=tmp_path, postgres_options=VOLATILE, **ports)
    async with Stack(settings) as stack, AsyncClient(queue_url=stack.queue_url, dag_url=stack.dag_url) as client:
        worker = await begin_worker(stack)
        try:
            async with asyncio.timeout(150):
                runs = {
                    id: await client.workflows.start(type, input, id=id) for id, (type, input, _) in RUNS.items()
                }
                release = await client.submit(unified.release("review-1"))
                while len((await runs["backfill-1"].history())["events"]) < 12:
                    await asyncio.sleep(0.05)
                if victim == "worker":
                    worker.kill()
                    await worker.wait()
                    worker = await begin_worker(stack)
                else:
                    os.kill(stack.children[victim].pid, signal.SIGKILL)
                for id, (name, data) in SIGNALS.items():
                    await again(lambda id=id, name=name, data=data: runs[id].signal(name, data, id="once"))  # type: ignore[misc]
                await again(lambda: client.workflows.get("review-1").signal("approval", {"by": "ada"}, id="once"))
                for id, (_, _, output) in RUNS.items():
                    run = await again(lambda id=id: runs[id].wait(timeout_s=60))  # type: ignore[misc]
                    assert (run.state, run.output) == ("succeeded", output), run
                assert (await again(lambda: release.wait(timeout_s=60))).state == "succeeded"
                assert await client.workflows.list(stuck=True) == []
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
