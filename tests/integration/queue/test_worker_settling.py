"""A worker on a real queue whose calls fail, and which stops: nothing is lost, ends twice or costs an attempt."""

import asyncio
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Job, RetryPolicy, Worker
from tests.support.queue_host import AT_ONCE, Api

ONCE = RetryPolicy(attempts_max=1)


class Lossy(httpx.AsyncBaseTransport):
    """Calls to a process in this one, some of which never come, and some of whose answers do not."""

    def __init__(self, api: Api, seed: int) -> None:
        self._way = httpx.ASGITransport(app=api.host.app)
        self._rng = random.Random(seed)
        self.losses = 0.0
        self.carried = 0  # dequeues that settled something

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lost = self._rng.random() < self.losses
        if lost and self._rng.random() < 0.5:
            raise httpx.ReadError("never sent")
        response = await self._way.handle_async_request(request)
        self.carried += b'"settle"' in await request.aread()
        if lost:
            raise httpx.ReadError("the answer is lost")
        return response


def worker_of(api: Api, way: Lossy, **options: Any) -> Worker:
    client = AsyncClient(queue_url="http://localhost", namespace=api.namespace, transport=way, retry=ONCE)
    return Worker(client, **options)


@pytest.mark.parametrize("prefetch", [None, 0, 5])
async def test_every_job_ends_once_however_many_answers_are_lost(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    """A lost dequeue costs its items a lease: they are delivered again, and told to be ended once."""
    monkeypatch.setattr("headgate._worker.worker.pause_s", lambda _failures: 0.0)
    monkeypatch.setattr("headgate._worker.settler.pause_s", lambda _failures: 0.0)
    ids = {await own_api.enqueue_one("t", backoff=AT_ONCE, ack_topic="done") for _ in range(60)}
    way = Lossy(own_api, seed=7)
    worker = worker_of(own_api, way, prefetch=prefetch, lease_s=30, drain_s=5, wait_s=0.05)
    handled: Counter[str] = Counter()

    @worker.task("t", slots=3)
    async def handle(job: Job) -> None:
        handled[job.id] += 1
        way.losses = 0.3
        if handled[job.id] == 1 and len(handled) % 7 == 0:
            raise ValueError("once in a while")

    running = asyncio.create_task(worker.run(signals=False))
    told: list[str] = []
    async with asyncio.timeout(60):
        while len(told) < len(ids):
            await own_api.host.pass_time(31)
            told += [completion["id"] for completion in await own_api.completions("done")]
    way.losses = 0.0
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert Counter(told) == dict.fromkeys(ids, 1)
    assert set(handled) == ids
    assert way.carried > 0
    assert await own_api.completions("done") == []
    assert await own_api.host.count("item") == 0


async def test_a_worker_that_stops_gives_back_what_waits_at_no_attempt(own_api: Api) -> None:
    ids = [await own_api.enqueue_one("t", max_attempts=1) for _ in range(9)]
    way, go_on = Lossy(own_api, seed=1), asyncio.Event()
    worker = worker_of(own_api, way, prefetch=4, drain_s=30)

    @worker.task("t", slots=2)
    async def handle(_job: Job) -> None:
        await go_on.wait()

    running = asyncio.create_task(worker.run(signals=False))
    (task,) = worker._tasks.values()
    async with asyncio.timeout(20):
        while len(task.waiting) < 4:
            await asyncio.sleep(0.001)
        worker.stop()
        while (await own_api.item(ids[5]))["state"] != "ready":
            await asyncio.sleep(0.001)
    go_on.set()
    await asyncio.wait_for(running, 20)

    left = await own_api.dequeue("t", 9)
    assert {item["id"] for item in left} == set(ids[2:])
    assert {item["attempt"] for item in left} == {1}


async def test_leases_of_what_waits_for_a_slot_are_kept(own_api: Api) -> None:
    """Items wait here for as long as they must, and are nobody else's meanwhile."""
    ids = [await own_api.enqueue_one("t", backoff=AT_ONCE) for _ in range(4)]
    way, go_on, now = Lossy(own_api, seed=1), asyncio.Event(), 0.0
    worker = worker_of(own_api, way, prefetch=3, lease_s=20, clock=lambda: now)
    done: list[str] = []

    @worker.task("t")
    async def handle(job: Job) -> None:
        await go_on.wait()
        done.append(job.id)

    running = asyncio.create_task(worker.run(signals=False))
    (task,) = worker._tasks.values()
    async with asyncio.timeout(20):
        while len(task.waiting) < 3:
            await asyncio.sleep(0.001)
        for _ in range(5):
            now += 10
            await worker._leases.step()
            await own_api.host.pass_time(10)
        assert await own_api.dequeue("t", 9) == []
        go_on.set()
        while len(done) < 4:
            await asyncio.sleep(0.001)
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert done == ids


async def test_an_item_whose_output_is_always_refused_dies_with_that_error(own_api: Api) -> None:
    item_id = await own_api.enqueue_one("t", backoff=AT_ONCE)
    worker = worker_of(own_api, Lossy(own_api, seed=7), drain_s=5, wait_s=0.05)
    given: list[int] = []

    @worker.task("t", max_attempts=2)
    async def handle(job: Job) -> str:
        given.append(job.attempt)
        return "x" * 70_000

    running = asyncio.create_task(worker.run(signals=False))
    async with asyncio.timeout(60):
        while (await worker.client.item_states([item_id]))[0].state != "dead":
            await own_api.host.pass_time(1)
    worker.stop()
    await asyncio.wait_for(running, 20)
    (item,) = await worker.client.item_states([item_id])
    assert given == [1, 2]
    assert item.error is not None and "the service refused the ack: /items/0/output is over" in item.error
