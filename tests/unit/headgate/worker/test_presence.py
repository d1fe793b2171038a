"""What a worker says of itself, and what becomes of what it is told."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Job
from headgate._http.transport import RetryPolicy
from headgate._worker.worker import Worker
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_worker import Queue


class Known(Queue):
    """A queue that takes reports; those that wait are answered when the test says so."""

    def __init__(self, *items: dict[str, Any]) -> None:
        super().__init__(*items)
        self.reports: list[dict[str, Any]] = []
        self.news: asyncio.Queue[list[str]] = asyncio.Queue()
        self.refuses = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/workers"):
            return await super().handle_async_request(request)
        if self.refuses:
            return problem(403, "forbidden")
        body = json.loads(await request.aread())
        async with self.changed:
            self.reports.append(body)
            self.changed.notify_all()
        cancelled = await self.news.get() if body["wait_s"] else []
        return httpx.Response(200, json={"cancelled": cancelled})

    async def reported(self, count: int) -> dict[str, Any]:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: len(self.reports) >= count), 5)
        return self.reports[count - 1]


def worker_on(queue: Queue, **settings: Any) -> Worker:
    client = AsyncClient(queue_url="http://q", transport=queue, retry=RetryPolicy(attempts_max=1))
    return Worker(client, name="w", version="v1", drain_s=5.0, **settings)


async def test_a_worker_says_what_it_is_and_does_and_that_it_goes() -> None:
    queue = Known(leased("a"))
    worker = worker_on(queue, lease_s=30)
    begun, ends = asyncio.Event(), asyncio.Event()

    @worker.task("t", slots=4)
    async def handle(_job: Job) -> None:
        begun.set()
        await ends.wait()

    running = asyncio.create_task(worker.run(signals=False))
    first = await queue.reported(1)
    assert (first["name"], first["version"], first["lease_s"], first["wait_s"]) == ("w", "v1", 30, 0)
    await begun.wait()
    await queue.reported(2)
    queue.news.put_nowait(["another"])
    third = await queue.reported(3)
    assert third["topics"] == [{"topic": "t", "slots": 4, "running": 1}] and third["wait_s"] == 5
    ends.set()
    await queue.heard("ack", 1)
    worker.stop()
    await running
    assert queue.reports[-1]["leaving"] is True


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_cancel_reaches_the_handler(is_plain: bool) -> None:
    queue = Known(leased("a"))
    queue.statuses = {"a": "cancelled"}
    worker = worker_on(queue)
    begun, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def cancelled(_job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    def looking(job: Job) -> None:
        loop.call_soon_threadsafe(begun.set)
        while not job.cancelled:
            pass
        loop.call_soon_threadsafe(ended.set)

    worker.task("t")(looking if is_plain else cancelled)
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.wait_for(begun.wait(), 5)
    await queue.reported(2)
    queue.news.put_nowait(["a", "another"])
    await asyncio.wait_for(ended.wait(), 5)
    worker.stop()
    await running
    assert [item["id"] for item in queue.said["extend"]] == ["a"]
    assert not queue.said["ack"] and not queue.said["nack"], "nothing is said of what was cancelled"


async def test_a_service_that_refuses_reports_costs_the_worker_nothing_else() -> None:
    queue = Known(leased("a"))
    queue.refuses = True
    worker = worker_on(queue)
    worker.task("t")(lambda _job: None)
    running = asyncio.create_task(worker.run(signals=False))
    await queue.heard("ack", 1)
    worker.stop()
    await running
    assert queue.reports == []


async def test_a_process_that_leaves_and_one_cancel_after_another_are_not_asked_again_and_again() -> None:
    queue = Known()
    worker = worker_on(queue)
    worker.task("t")(lambda _job: None)
    presence = worker._presence
    assert 0 < await presence.step() <= 0.2, "the next one is kept"
    queue.news.put_nowait([])
    assert await presence.step() == 2.0, "it was to be kept, and was not"
    queue.news.put_nowait(["another"])
    assert 0 < await presence.step() <= 0.2
