"""Workflows on the real stack: the SDK's worker and client, both services, and their databases."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import AsyncClient, Dag, Job, NodeFailed, Worker, Workflow
from headgate.testing import replay
from services.local.stack import Stack


class Shop:
    """A namespace of its own, a client of it, and a worker whose loop is the test's."""

    def __init__(self, stack: Stack) -> None:
        self.client = AsyncClient(
            queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=f"wf-{secrets.token_hex(4)}"
        )
        self.worker = Worker(self.client, drain_s=2, wait_s=2)
        self._working: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._working = asyncio.create_task(self.worker.run(signals=False))

    async def close(self) -> None:
        if self._working is not None:
            self.worker.stop()
            self.worker.stop()
            await self._working
        await self.client.aclose()

    async def output(self, type: str, input: Any = None, **options: Any) -> Any:
        run = await self.client.workflows.start(type, input, **options)
        ended = await run.wait(timeout_s=30)
        assert ended.state == "succeeded", ended
        return ended.output


@pytest.fixture
async def shop(stack: Stack) -> AsyncIterator[Shop]:
    made = Shop(stack)
    async with asyncio.timeout(60):
        yield made
    await made.close()


async def test_calls_steps_graphs_timers_and_signals(shop: Shop) -> None:
    @shop.worker.task("double")
    async def double(job: Job) -> int:
        return int(job.payload) * 2

    @shop.worker.task("broken", max_attempts=1)
    async def broken(job: Job) -> None:
        raise ValueError("as it must be")

    @shop.worker.workflow("everything")
    async def everything(wf: Workflow, count: int) -> dict[str, Any]:
        doubled = await asyncio.gather(*(wf.call("double", number) for number in range(count)))
        length = await wf.run(len, doubled)
        try:
            await wf.call("broken", max_attempts=1)
        except NodeFailed as error:
            failed = error.key
        await wf.sleep(0.05)
        wf.publish("state", "waits")
        approved = await wf.receive("approval")
        graph = Dag("pack")
        box = graph.node("box", "double", payload=21)
        graph.node("label", "double", payload=4, after=[box])
        packed = await wf.dag(graph)
        try:
            async with asyncio.timeout(0.05):
                await wf.receive("nothing")
        except TimeoutError:
            late = True
        return {
            "doubled": doubled,
            "length": length,
            "failed": failed,
            "approved": approved,
            "packed": packed,
            "late": late,
        }

    shop.open()
    run = await shop.client.workflows.start("everything", 5, id="order-17")
    assert (run.id, run.existing) == ("order-17", False)
    again = await shop.client.workflows.start("everything", 5, id="order-17")
    assert again.existing and again.run == run.run
    assert (await run.signal("approval", {"by": "ada"}, id="one")).status == "accepted"
    assert (await run.signal("approval", {"by": "eve"}, id="one")).status == "duplicate"
    ended = await run.wait(timeout_s=30)
    assert ended.state == "succeeded", ended
    assert ended.output == {
        "doubled": [0, 2, 4, 6, 8],
        "length": 5,
        "failed": "broken#1",
        "approved": {"by": "ada"},
        "packed": {"label": 8},
        "late": True,
    }
    assert ended.published == {"state": "waits"}
    history = await run.history()
    assert [event["event"] for event in history["events"]] == list(range(1, len(history["events"]) + 1))
    replay(history, everything)
