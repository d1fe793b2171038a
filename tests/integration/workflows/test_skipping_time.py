"""The real services where timers do not wait: for the tests of those who use workflows."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate import AsyncClient, Dag, Job, Worker, Workflow
from services.local.errors import LocalError
from services.local.postgres import VOLATILE
from services.local.settings import PORTS, LocalSettings
from services.local.stack import Stack


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    settings = LocalSettings(
        data_dir=tmp_path / "data",
        loose_ports=frozenset(PORTS),
        free_ports=True,
        queue_shards=1,
        dag_shards=1,
        postgres_options=VOLATILE,
    )
    async with Stack(settings, skip_time=True) as stack:
        made = AsyncClient(
            queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=f"wf-{secrets.token_hex(4)}"
        )
        yield made
        await made.aclose()


async def test_a_day_of_a_workflow_passes_at_once_where_time_is_skipped(client: AsyncClient) -> None:
    """In its order: a task that works holds time up, and so does a child; what is due first ends first."""
    worker = Worker(client, drain_s=2, wait_s=2)

    @worker.task("work")
    async def work(job: Job) -> str:
        await asyncio.sleep(1.0)
        return "worked"

    @worker.workflow("small")
    async def small(wf: Workflow) -> str:
        await wf.sleep(1_800)
        return "child"

    @worker.workflow("long")
    async def long(wf: Workflow) -> list[str]:
        began, found = wf.now(), []
        try:
            async with asyncio.timeout(60):
                found.append(await wf.call("work"))
        except TimeoutError:
            found.append("timed out")
        try:
            async with asyncio.timeout(3_600):
                found.append(await wf.child("small"))
        except TimeoutError:
            found.append("timed out")
        try:
            async with asyncio.timeout(86_400):
                await wf.receive("approval")
        except TimeoutError:
            found.append(f"{(wf.now() - began).days} day")
        return found

    graph = Dag("release")
    soak = graph.timer("soak", delay_s=86_400)
    graph.node("publish", "work", after=[soak])
    async with asyncio.timeout(120):
        working = asyncio.create_task(worker.run(signals=False))
        run = await client.workflows.start("long", None)
        ended = await run.wait(timeout_s=60)
        assert (ended.state, ended.output) == ("succeeded", ["worked", "child", "1 day"]), ended
        handle = await client.submit(graph)
        assert (await handle.wait(timeout_s=30)).state == "succeeded"
        worker.stop()
        await working


async def test_time_is_skipped_on_one_shard_alone(tmp_path: Path) -> None:
    """Of two each would skip what its own timers wait for, whatever the other's are."""
    settings = LocalSettings(
        data_dir=tmp_path / "data", loose_ports=frozenset(PORTS), free_ports=True, dag_shards=2
    )
    stack = Stack(settings, skip_time=True)
    try:
        with pytest.raises(LocalError, match="--dag-shards 1"):
            await stack.start()
    finally:
        await stack.stop()
