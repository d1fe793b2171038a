"""What a worker settles with its next dequeue and takes ahead of its slots, also when calls fail or it stops."""

import asyncio
from typing import Any

import httpx
import pytest

from headgate import Job
from headgate._worker.settler import CARRIED_BYTES_MAX, CARRIED_MAX
from headgate._worker.task import ANSWER_S, PREFETCH_S, PREFETCH_SLOTS_MAX, Task
from headgate._worker.worker import Worker
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_keepers import Held
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working


async def ends(job: Job) -> str:
    return job.id


async def never_ends(_job: Job) -> None:
    await asyncio.Event().wait()


def started(worker: Worker, handler: Any, slots: int = 1, **options: Any) -> "asyncio.Task[None]":
    worker.task("t", slots=slots, **options)(handler)
    return asyncio.create_task(worker.run(signals=False))


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_one_job_after_another_costs_a_call_each() -> None:
    queue = Queue(*map(leased, "abc"))
    worker = worker_on(queue, prefetch=0)
    running = started(worker, ends)
    await queue.heard("ack", 3)
    assert (queue.settled, queue.counts[0]) == ([1, 1, 1], 1)
    assert set(queue.calls) == {"dequeue"}
    worker.stop()
    await running


async def test_what_a_worker_settles_it_hears_of_soon() -> None:
    queue = Queue(leased("a"))
    worker = worker_on(queue, prefetch=0, wait_s=20)
    running = started(worker, ends)
    await asyncio.wait_for(queue.idle.wait(), 5)
    await until(lambda: len(queue.waits_s) >= 3)
    assert queue.waits_s[:3] == [(False, 20), (True, 1), (False, 20)]
    worker.stop()
    await running


async def test_where_the_dequeue_waits_an_ack_goes_by_itself() -> None:
    queue, go_on = Queue(leased("a")), asyncio.Event()

    async def handler(_job: Job) -> None:
        await go_on.wait()

    worker = worker_on(queue)
    running = started(worker, handler, slots=2)
    await asyncio.wait_for(queue.idle.wait(), 5)
    go_on.set()
    await queue.heard("ack", 1)
    assert queue.calls == ["dequeue", "dequeue", "ack"]
    worker.stop()
    await running


@pytest.mark.parametrize(
    "failure",
    [
        problem(422, "invalid"),
        problem(413, "too_large"),
        problem(503, "overloaded"),
        problem(500, "internal", outcome="unknown"),
        httpx.ReadError("reset"),
        httpx.Response(200, json={"items": []}),
    ],
    ids=["invalid", "too large", "overloaded", "failed", "cut off", "no results"],
)
async def test_what_was_to_go_with_a_dequeue_that_failed_goes_by_itself(failure: Any) -> None:
    """The worker goes on: a call that is refused for what it settles says nothing of its dequeues."""
    queue = Queue(leased("a"), leased("b"))
    queue.failing = [None, failure]
    worker = worker_on(queue, prefetch=0)
    running = started(worker, ends)
    await queue.heard("ack", 2)
    worker.stop()
    await running
    assert sorted(ack["output"] for ack in queue.said["ack"]) == ["a", "b"]
    assert queue.failing == []


async def test_a_nack_that_was_taken_before_its_answer_was_lost_is_no_lost_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(_job: Job) -> None:
        raise ValueError("a bug")

    class Forgetful(Queue):
        async def dequeue(self, body: Any) -> httpx.Response:
            answer = await super().dequeue(body)
            if "settle" in body and not self.statuses:
                self.statuses = {"a": "lease_lost"}
                raise httpx.ReadError("reset")
            return answer

    queue = Forgetful(leased("a"))
    worker = worker_on(queue)
    running = started(worker, fails)
    await queue.heard("nack", 2)
    worker.stop()
    await running
    assert "nack" in queue.calls
    assert not [record for record in caplog.records if "lease_lost" in record.getMessage()]


async def test_items_wait_for_a_slot_with_their_leases_kept_and_go_back_at_once_when_it_stops() -> None:
    queue = Queue(*map(leased, "abcdef"))
    worker = worker_on(queue, prefetch=3, drain_s=30)
    running = started(worker, never_ends, slots=2)
    (task,) = worker._tasks.values()
    await until(lambda: len(task.waiting) == 3)
    assert {job.id for job in worker._leases.held()} == set("abcde")
    assert task.running == 2
    worker.stop()
    assert {nack["id"] for nack in await queue.heard("nack", 3)} == set("cde"), "before those that run have ended"
    assert all(nack["costs_attempt"] is False for nack in queue.said["nack"])
    worker.stop()
    await asyncio.wait_for(running, 5)
    assert {nack["id"] for nack in queue.said["nack"]} == set("abcde")
    assert [item["id"] for item in queue.items] == ["f"]


async def test_handlers_begin_in_the_order_of_service() -> None:
    seen: list[str] = []

    async def handler(job: Job) -> None:
        seen.append(job.id)

    queue = Queue(*map(leased, "abcdefgh"))
    await working(queue, handler, lambda: queue.heard("ack", 8), prefetch=5)
    assert seen == list("abcdefgh")


async def test_what_was_lost_while_it_waited_is_not_begun() -> None:
    seen: list[str] = []
    go_on = asyncio.Event()

    async def handler(job: Job) -> None:
        seen.append(job.id)
        await go_on.wait()

    queue = Queue(*map(leased, "abc"))
    worker = worker_on(queue, prefetch=2)
    running = started(worker, handler)
    (task,) = worker._tasks.values()
    await until(lambda: len(task.waiting) == 2)
    task.waiting[0].lose("cancelled")
    go_on.set()
    await queue.heard("ack", 2)
    worker.stop()
    await running
    assert seen == ["a", "c"]
    assert queue.said["nack"] == []


async def test_a_stop_waits_for_the_answer_of_a_dequeue_that_settles() -> None:
    """What it settled is not sent again, and what it brought goes back at no attempt."""
    answer = asyncio.Event()

    class Slow(Queue):
        async def dequeue(self, body: Any) -> httpx.Response:
            found = await super().dequeue(body)
            if "settle" in body:
                await answer.wait()
            return found

    queue = Slow(*map(leased, "ab"))
    worker = worker_on(queue)
    running = started(worker, ends)
    await queue.heard("ack", 1)
    worker.stop()
    await asyncio.sleep(0)
    answer.set()
    await asyncio.wait_for(running, 5)
    assert [ack["id"] for ack in queue.said["ack"]] == ["a"]
    assert [(nack["id"], nack["costs_attempt"]) for nack in queue.said["nack"]] == [("b", False)]


async def test_a_second_stop_does_not_wait_for_it() -> None:
    class Silent(Queue):
        async def dequeue(self, body: Any) -> httpx.Response:
            if "settle" in body:
                await asyncio.Event().wait()
            return await super().dequeue(body)

    queue = Silent(leased("a"))
    worker = worker_on(queue)
    running = started(worker, ends)
    await until(lambda: queue.calls == ["dequeue", "dequeue"])
    worker.stop()
    worker.stop()
    await asyncio.wait_for(running, 5)
    assert [ack["id"] for ack in queue.said["ack"]] == ["a"], "by itself"


@pytest.mark.parametrize("prefetch", [-1, 1000])
def test_a_prefetch_out_of_bounds_is_refused(prefetch: int) -> None:
    with pytest.raises(ValueError, match="prefetch"):
        Worker(prefetch=prefetch)
    with pytest.raises(ValueError, match="prefetch"):
        Worker().task("t", prefetch=prefetch)


# -- how much it asks for -----------------------------------------------------------------------------------


def a_task(slots: int, prefetch: int | None = None) -> Task:
    return Task("t", ends, slots, 60.0, 20, prefetch)


@pytest.mark.parametrize(
    ("handled_s", "ahead"),
    [
        (None, 0),
        (60.0, 0),
        (PREFETCH_S * 10, 1),
        (PREFETCH_S * 2, 5),
        (PREFETCH_S, 10),
        (1e-9, PREFETCH_SLOTS_MAX * 10),
    ],
)
def test_as_many_are_taken_ahead_as_begin_within_a_moment(handled_s: float | None, ahead: int) -> None:
    task = a_task(slots=10)
    if handled_s is not None:
        task.handled(handled_s)
    assert task.room() == 10 + ahead
    task.running = 10
    assert task.room() == 0, "nobody says that there are more"
    task.has_backlog = True
    assert task.room() == ahead


def test_a_pace_follows_the_handlers() -> None:
    task = a_task(slots=10)
    task.handled(1e-6)
    for _ in range(40):
        task.handled(10.0)
    assert task.room() == 10


def test_a_verdict_waits_only_for_a_dequeue_that_comes() -> None:
    task = a_task(slots=2, prefetch=2)
    assert task.asks_soon(0.0)
    task.asked_s = 0.0
    assert not task.asks_soon(0.0), "the last answer was short: this one waits for items"
    task.has_backlog = True
    assert task.asks_soon(ANSWER_S / 2)
    assert not task.asks_soon(ANSWER_S), "it waits for items"


# -- what goes along ----------------------------------------------------------------------------------------


async def test_what_goes_along_is_bounded_and_due() -> None:
    held = Held(Queue(), *map(str, range(CARRIED_MAX + 1)))
    for job in held.jobs:
        held.settler.add(job, "ack", job.leased.ack())
    assert len(held.settler.take()) == CARRIED_MAX
    assert len(held.settler.take()) == 1
    for job in held.jobs[:3]:
        job.output_bytes = CARRIED_BYTES_MAX
        held.settler.add(job, "ack", job.leased.ack())
    assert [len(held.settler.take()) for _ in range(4)] == [1, 1, 1, 0]


async def test_nothing_is_settled_while_it_is_on_its_way() -> None:
    held = Held(Queue(), "a", "b", "c")
    for job in held.jobs:
        held.settler.add(job, "ack", job.leased.ack())
    held.jobs[2].lost = "cancelled"
    taken = held.settler.take()
    assert [verdict.job.id for verdict in taken] == ["a", "b"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(held.settler.settled(), 0.001)
    held.settler.untold(taken)
    assert held.settler.take() == [], "it goes by itself now"
    await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["a", "b"]
    await asyncio.wait_for(held.settler.settled(), 60)


async def test_a_worker_that_cannot_tell_how_jobs_ended_says_so_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended as if all was well, and what was done runs again."""

    class Silent(Queue):
        async def settle(self, verb: str, elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
            await super().settle(verb, elements)
            if verb == "ack":
                await asyncio.Event().wait()
            return []

    monkeypatch.setattr("headgate._worker.worker.SETTLE_S_MAX", 0.01)
    monkeypatch.setattr("headgate._worker.dequeues.ASKED_S_MAX", 0.01)
    queue = Silent(leased("a"))
    await working(queue, lambda _job: "done", lambda: queue.heard("ack", 1))
    [said] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "1 jobs ended could not be told" in said.getMessage()
