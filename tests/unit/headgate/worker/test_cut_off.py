"""Ends that come from beside a handler: its loop is ended under it, it cancels itself, or it never ends at all."""

import asyncio
import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headgate import Fail, Job, Worker
from headgate._worker.worker import ATTEMPTS_MAX
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working

loose: list[asyncio.Task[Any]] = []


async def boom() -> None:
    sys.exit("all of it")


async def in_gather() -> None:
    await asyncio.gather(boom(), asyncio.Event().wait())


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(boom())


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, "all of it")
    await asyncio.Event().wait()


async def in_a_loose_task() -> None:
    loose.append(asyncio.create_task(boom()))
    await asyncio.Event().wait()


async def in_a_task() -> None:
    await asyncio.create_task(boom())


Ending = Callable[[], Awaitable[None]]


def ended_by(queue: Queue, end: Ending, *, draining: bool = False) -> None:
    """Run a worker whose job "bad" ends all of the loop, while others are at work and wait."""
    worker = worker_on(queue, drain_s=3_600, prefetch=1)
    begun, going = asyncio.Event(), asyncio.Event()

    @worker.task("t", slots=2)
    async def handler(job: Job) -> None:
        if job.id != "bad":
            begun.set()
            await asyncio.Event().wait()
        await begun.wait()
        if draining:
            worker.stop()
            asyncio.get_running_loop().call_soon(going.set)
            await going.wait()
        await end()

    async def main() -> None:
        await asyncio.wait_for(worker.run(signals=False), 10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert worker._leases.held() == []


def told(queue: Queue) -> dict[str, dict[str, Any]]:
    assert len({nack["id"] for nack in queue.said["nack"]}) == len(queue.said["nack"]), "each once"
    return {nack["id"]: nack for nack in queue.said["nack"]}


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("end", [in_gather, in_a_group, in_a_task, in_a_callback, in_a_loose_task])
def test_a_task_of_a_handler_that_exits_is_the_end_of_the_process_behind_a_word_of_all_it_held(
    end: Ending, draining: bool
) -> None:
    queue = Queue(leased("bad"), leased("other"), leased("waits"))
    ended_by(queue, end, draining=draining)
    nacks = told(queue)
    assert "SystemExit" in nacks["bad"]["error"] and nacks["bad"].get("costs_attempt", True)
    assert nacks["other"]["costs_attempt"] is False
    assert nacks["waits"]["costs_attempt"] is False


def test_where_nobody_can_tell_who_exited_all_is_handed_back() -> None:
    async def end() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, "all of it", context=contextvars.Context())
        await asyncio.Event().wait()

    queue = Queue(leased("bad"), leased("other"))
    ended_by(queue, end)
    assert {item_id: nack["costs_attempt"] for item_id, nack in told(queue).items()} == {
        "bad": False,
        "other": False,
    }


async def at_work(queue: Queue) -> tuple[Worker, asyncio.Task[None]]:
    """A worker whose handler, which does not end, has begun."""
    worker, begun = worker_on(queue, drain_s=3_600), asyncio.Event()

    @worker.task("t")
    async def handler(_job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.wait_for(begun.wait(), 10)
    return worker, running


async def test_a_worker_that_is_cancelled_by_each_who_waits_for_it_hands_back_once() -> None:
    queue = Queue(leased("a"))
    worker, running = await at_work(queue)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert told(queue)["a"]["costs_attempt"] is False and worker._leases.held() == []


class NoStates(Queue):
    """Never says how an item stands."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/items/states"):
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


def test_what_is_known_of_an_end_is_told_where_there_is_no_time_to_ask_whether_it_was_the_last() -> None:
    queue = NoStates(leased("bad", attempt=ATTEMPTS_MAX), leased("other"))
    ended_by(queue, in_a_group)
    assert "SystemExit" in told(queue)["bad"]["error"]


@pytest.mark.parametrize("times", [1, 2])
def test_all_tasks_of_a_loop_are_cancelled_and_nothing_is_held(times: int) -> None:
    """Twice: a worker that was cancelled is still handing back when its program ends."""
    queue = Queue(leased("a"))

    async def main() -> None:
        worker, running = await at_work(queue)
        for _ in range(times):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([running], timeout=10)
        assert running.cancelled() and worker._leases.held() == []

    # In a loop of its own: the tests' loop has tasks of what they share.
    asyncio.run(main())
    assert told(queue)["a"]["costs_attempt"] is False


@pytest.mark.parametrize("attempt", [1, ATTEMPTS_MAX])
@pytest.mark.parametrize("error", [None, ValueError("a bug")])
async def test_a_handler_that_ends_with_a_cancel_of_its_own_to_come_has_failed(
    error: Exception | None, attempt: int
) -> None:
    async def handler(job: Job) -> str:
        if job.id == "bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if error is not None:
                raise error
        return "done"

    queue = Queue(leased("bad", attempt=attempt), leased("good"))
    ends = lambda: asyncio.gather(queue.heard("nack", 1), queue.heard("ack", 1))  # noqa: E731
    await working(queue, handler, ends)
    (nack,) = queue.said["nack"]
    assert nack["id"] == "bad" and nack.get("costs_attempt", True)
    assert ("a bug" if error else "cancelled") in nack["error"] and "the worker stopped" not in nack["error"]
    assert [ack["id"] for ack in queue.said["ack"]] == ["good"]


async def test_a_task_that_somebody_else_cancels_before_it_begins_has_a_verdict_that_is_true() -> None:
    queue = Queue(leased("a"))
    worker = worker_on(queue)
    worker.task("t")(lambda _job: None)
    start = worker._start

    def start_and_cancel(*arguments: Any) -> None:
        start(*arguments)
        for job in list(worker._jobs):
            job.cancel()

    worker._start = start_and_cancel  # type: ignore[method-assign]
    running = asyncio.create_task(worker.run(signals=False))
    (nack,) = await queue.heard("nack", 1)
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert "cancelled" in nack["error"] and nack.get("costs_attempt", True)


@pytest.mark.parametrize("error", [ValueError("a bug"), Fail("no use")])
async def test_a_job_has_its_verdict_though_the_programs_logging_raises(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its lease would be extended for as long as the worker lives."""

    said_by: set[str] = set()

    def broken(record: logging.LogRecord) -> bool:
        said_by.add(record.module)
        if isinstance(record.args, tuple) and isinstance(record.args[0], Job):
            raise AttributeError("it looks for a text there")
        return True

    async def handler(job: Job) -> str:
        if job.id == "bad":
            raise error
        return "done"

    queue = Queue(leased("bad"), leased("good"))
    logger = logging.getLogger("headgate._worker")
    monkeypatch.setattr(logger, "filters", [broken])
    logger.setLevel(logging.INFO)
    try:
        ends = lambda: asyncio.gather(queue.heard("nack", 1), queue.heard("ack", 1))  # noqa: E731
        await working(queue, handler, ends)
    finally:
        logger.setLevel(logging.NOTSET)
    assert str(error) in told(queue)["bad"]["error"]
    assert "worker" in said_by and "program_log" not in said_by
    assert [ack["id"] for ack in queue.said["ack"]] == ["good"]


class Stubborn:
    """A worker beside a handler that takes no cancel for an end until `over`."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headgate._worker.worker.CUT_OFF_S_MAX", 0.01)
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self.worker = worker_on(queue, drain_s=3_600)
        self.worker.task("t", slots=2)(self.handler)

    async def handler(self, job: Job) -> None:
        if job.id == "other":
            await asyncio.Event().wait()
        self.begun.set()
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                continue

    async def stopped(self, run: Callable[[], Awaitable[None]]) -> None:
        running = asyncio.ensure_future(run())
        await asyncio.wait_for(self.begun.wait(), 10)
        self.worker.stop()
        self.worker.stop()
        ended, _ = await asyncio.wait([running], timeout=10)
        left = [task for task in asyncio.all_tasks() if "_work" in repr(task.get_coro())]
        self.over.set()
        if left:
            await asyncio.wait(left)
        assert ended, "it waits for what does not end"
        await running


async def test_what_takes_no_cancel_is_left_with_its_lease_to_run_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(leased("never"), leased("other"))
    stubborn = Stubborn(queue, monkeypatch)
    await stubborn.stopped(lambda: stubborn.worker.run(signals=False))
    assert stubborn.worker._leases.held() == []
    assert set(told(queue)) == {"other"}, (
        "it may still be at work: nobody else is to have it before its lease is over"
    )
    assert any("never" in record.getMessage() and record.levelname == "ERROR" for record in caplog.records)


async def cancel_others(of: str) -> None:
    """Cancel what runs this function."""
    for task in asyncio.all_tasks():
        if of in repr(task.get_coro()):
            task.cancel()


@pytest.mark.parametrize("part", ["Leases.run", "Settler.run", "Presence.run", "Worker._poll"])
def test_a_worker_of_which_a_part_was_cancelled_ends_with_an_error_and_holds_nothing(part: str) -> None:
    """It ended as if all was well, and what it held stayed leased."""

    async def handler(job: Job) -> str:
        if job.id == "bad":
            await cancel_others(part)
            await asyncio.Event().wait()
        return "done"

    async def main() -> None:
        worker = worker_on(queue, drain_s=0.0)
        worker.task("t", slots=2)(handler)
        with pytest.raises(RuntimeError, match="has cancelled a part of it"):
            await asyncio.wait_for(worker.run(signals=False), 10)
        assert worker._leases.held() == []

    queue = Queue(leased("bad"), leased("other"))
    asyncio.run(main())
    assert told(queue)["bad"]["costs_attempt"] is False
    assert [ack["id"] for ack in queue.said["ack"]] == ["other"]
