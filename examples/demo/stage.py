"""The demo's own stack and worker processes: on a temporary directory and free ports, gone afterwards."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.local.ports import free_port
from services.local.process import Child, Command
from services.local.settings import LocalSettings
from services.local.stack import ROOT, Stack

START_TIMEOUT_S = 30.0
POLL_S = 0.02


@dataclass(frozen=True)
class Stage:
    """A running stack. `traces` is where its clients write down what happens."""

    queue_url: str
    dag_url: str
    traces: Path
    logs: Path
    environment: Mapping[str, str]
    failed: "asyncio.Task[None]"


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A private stack with durable servers: nothing that the shell says of another one reaches it."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        del os.environ[name]
    directory = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    traces = directory / "traces"
    traces.mkdir()
    ports = {name: free_port() for name in ("queue_port", "dag_port", "postgres_port", "redis_port")}
    stack = Stack(LocalSettings(data_dir=directory / "data", **ports))  # type: ignore[arg-type]
    try:
        async with stack:
            urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}
            failed = asyncio.create_task(stack.failed())
            try:
                yield Stage(stack.queue_url, stack.dag_url, traces, directory, {**os.environ, **urls}, failed)
            finally:
                failed.cancel()
    finally:
        stack.remove()
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def workers(on: Stage, count: int) -> AsyncIterator[list[Child]]:
    """So many worker processes; leaving drains and ends them."""
    children = [_worker(on, f"worker-{number}") for number in range(1, count + 1)]
    try:
        for child in children:
            child.spawn()
        async with asyncio.timeout(START_TIMEOUT_S):
            while not all(_started(on, child) for child in children):
                require_running(children)
                await asyncio.sleep(POLL_S)
        yield children
    finally:
        await asyncio.gather(*(child.stop() for child in children))


def require_running(children: list[Child]) -> None:
    """Raises RuntimeError for a worker that has died."""
    for child in children:
        if not child.running:
            raise RuntimeError(child.obituary())


def _worker(on: Stage, name: str) -> Child:
    command = Command(
        name=name,
        argv=(sys.executable, "-m", "examples.demo.worker", name, str(on.traces / f"{name}.jsonl")),
        env=on.environment,
        cwd=ROOT,
    )
    return Child(command, log_path=on.logs / f"{name}.log", pid_path=on.logs / f"{name}.pid")


def _started(on: Stage, child: Child) -> bool:
    path = on.traces / f"{child.command.name}.jsonl"
    return path.exists() and path.stat().st_size > 0
