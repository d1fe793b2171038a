"""The examples of workflows, all at once, with a kill -9 of their worker or of a service half-way; one stack."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from examples import unified
from examples.workflows import app_submission
from headgate import AsyncClient, HeadgateError, NotFound
from headgate.testing import replay
from services.local.postgres import VOLATILE
from services.local.settings import LocalSettings
from services.local.stack import ROOT, Stack
from tests.support.example_worker import STAGE_S, WORKFLOWS
from tests.support.ports import free_port

T = TypeVar("T")

RUNS: dict[str, tuple[str, Any, Any]] = {
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
    "backfill-1": ("backfill", {"first": "2030-01-01", "last": "2030-01-08"}, {"failed": []}),
}
SIGNALS = {
    "order-1": ("approval", {"yes": True}),
    "app-1": ("review", {"accepted": True}),
    "review-1": ("approval", {"by": "ada"}),
}
# Events of each run by when it is in the middle of what it does.
HALF_WAY = {"order-1": 3, "app-1": 5, "cluster-1": 4, "backfill-1": 10, "review-1": 3}


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """The same call until a service answers it; what may not be there yet is asked for again."""
    while True:
        try:
            return await call()
        except HeadgateError as error:
            if error.status is not None and error.status < 500 and not isinstance(error, NotFound):
                raise
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def killed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack whose services may be killed: they are started again."""
    ports = {name: free_port() for name in ("queue_port", "dag_port", "postgres_port", "redis_port")}
    settings = LocalSettings(data_dir=tmp_path_factory.mktemp("stack"), postgres_options=VOLATILE, **ports)
    async with Stack(settings) as stack:
        yield stack


@asynccontextmanager
async def working(stack: Stack, namespace: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker of all examples, in a process of its own."""
    urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}
    program = (sys.executable, "-m", "tests.support.example_worker")
    environment = {**os.environ, **urls, "HEADGATE_NAMESPACE": namespace}
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_half_way(client: AsyncClient) -> None:
    for id, events in HALF_WAY.items():
        run = client.workflows.get(id)
        while len((await again(run.history))["events"]) < events:
            await asyncio.sleep(0.1)
    states = {id: (await client.workflows.get(id).show()).state for id in HALF_WAY}
    assert set(states.values()) == {"running"}, states


@pytest.mark.drawn(1)
@pytest.mark.parametrize("victim", ["worker", "queue", "dag"])
async def test_the_examples_survive_a_kill_half_way(
    killed: Stack, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_submission, "STAGE_S", STAGE_S)
    urls = {"queue_url": killed.queue_url, "dag_url": killed.dag_url}
    async with (
        asyncio.timeout(100),
        AsyncClient(**urls, namespace=f"killed-{victim}") as client,
        working(killed, client.namespace) as worker,
        working(killed, client.namespace) if victim == "worker" else client as _other,
    ):
        runs = {id: await client.workflows.start(type, input, id=id) for id, (type, input, _) in RUNS.items()}
        release = await client.submit(unified.release("review-1"))
        await until_half_way(client)

        os.kill(worker.pid if victim == "worker" else killed.children[victim].pid, signal.SIGKILL)

        for id, (name, data) in SIGNALS.items():
            await again(partial(client.workflows.get(id).signal, name, data, id="once"))
        for id, (type, _, output) in RUNS.items():
            run = await again(partial(runs[id].wait, timeout_s=60))
            assert (run.state, run.output) == ("succeeded", output), run
            replay(await again(runs[id].history), WORKFLOWS[type])
        assert (await again(partial(release.wait, timeout_s=60))).state == "succeeded"
        assert await client.workflows.list(state="running") == []
