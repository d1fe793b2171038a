"""Every way in which a job, or a part of a worker, can end: no item is held that nobody will say a word of."""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import httpx
import pytest

from headgate import Client, Job, Node, errors
from headgate._backoff import ceiling_s
from headgate._backoff import pause_s as real_pause_s
from headgate._http.transport import RetryPolicy
from headgate._worker.worker import Fail, Worker
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_keepers import Held
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working


class Panic(BaseException):
    """As an extension in Rust raises it."""


class Untellable(Fail):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ENDS: list[BaseException] = [
    Panic("a panic"),
    BaseExceptionGroup("several", [Panic("one"), ValueError("another")]),
    GeneratorExit("closed"),
    SystemExit(3),
    asyncio.CancelledError("by itself"),
    Untellable(),
]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_nack_and_the_worker_goes_on(
    error: BaseException, threaded: bool
) -> None:
    def function(job: Job) -> str:
        if job.id == "bad":
            raise error
        return "good"

    async def coroutine(job: Job) -> str:
        return function(job)

    queue = Queue(leased("bad"), leased("good"))
    ends = lambda: asyncio.gather(queue.heard("nack", 1), queue.heard("ack", 1))  # noqa: E731
    worker = await working(queue, function if threaded else coroutine, ends)

    (nack,) = queue.said["nack"]
    assert nack["id"] == "bad" and nack.get("costs_attempt", True)
    assert type(error).__name__ in nack["error"]
    assert [ack["id"] for ack in queue.said["ack"]] == ["good"]
    assert worker._leases.held() == [], "a lease that is still extended is never given to anybody else"


async def test_sys_exit_of_a_handler_ends_its_job_only() -> None:
    def handler(_job: Job) -> None:
        sys.exit("done")

    queue = Queue(leased("a"), leased("b"))
    await working(queue, handler, lambda: queue.heard("nack", 2))
    assert {nack["id"] for nack in queue.said["nack"]} == {"a", "b"}


async def test_a_keyboard_interrupt_in_a_handler_drains_the_worker() -> None:
    async def handler(_job: Job) -> None:
        raise KeyboardInterrupt

    queue = Queue(leased("a"))
    worker = worker_on(queue)
    worker.task("t")(handler)
    await asyncio.wait_for(worker.run(signals=False), 10)
    assert [nack["id"] for nack in queue.said["nack"]] == ["a"]


async def test_a_job_that_is_cut_off_before_its_handler_began_is_handed_back() -> None:
    """Of a task that is cancelled before its first step nothing runs, not even what stands behind `finally`."""
    handled: list[str] = []
    queue = Queue(leased("a"), leased("b"))

    async def handler(job: Job) -> None:
        handled.append(job.id)

    worker = worker_on(queue)
    worker.task("t", slots=2)(handler)
    start = worker._start

    def start_and_hurry(*arguments: Any) -> None:
        start(*arguments)
        worker.stop()
        worker.stop()
        for job in list(worker._jobs):
            job.cancel()

    worker._start = start_and_hurry  # type: ignore[method-assign]
    await asyncio.wait_for(worker.run(signals=False), 10)
    assert handled == []
    assert {(nack["id"], nack["costs_attempt"]) for nack in queue.said["nack"]} == {("a", False), ("b", False)}
    assert worker._leases.held() == []


async def test_an_outage_of_any_length_is_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    """2**1024 is no float: workers ended after some 45 minutes, and settlers unseen."""
    queue = Queue(leased("a"))
    queue.failing = [httpx.ConnectError("refused")] * 1_100 + [None] + [httpx.ConnectError("refused")] * 1_100
    monkeypatch.setattr("headgate._worker.worker.pause_s", lambda failures: real_pause_s(failures) * 0)
    monkeypatch.setattr("headgate._worker.settler.pause_s", lambda failures: real_pause_s(failures) * 0)
    await working(queue, lambda _job: "done", lambda: queue.heard("ack", 1))
    assert queue.said["ack"] == [{"id": "a", "lease_token": "token-a", "output": "done"}]
    assert queue.failing == []


def test_a_client_may_be_told_to_try_for_ever() -> None:
    assert ceiling_s(0.1, 0, 5.0) == 0.1
    assert ceiling_s(0.1, 10**9, 5.0) == 5.0


@pytest.mark.parametrize("keeper", ["_leases", "_settler"])
async def test_a_worker_whose_keeper_has_ended_takes_nothing_more_and_says_so(
    keeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would go on taking items whose leases nobody keeps, or whose ends nobody tells."""
    begun, end = asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        await end.wait()
        raise ZeroDivisionError("a defect")

    async def handler(_job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    queue = Queue(leased("a"))
    worker = worker_on(queue, drain_s=3_600)
    worker.task("t", slots=2)(handler)
    getattr(worker, keeper).run = broken
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.wait_for(begun.wait(), 5)
    await asyncio.wait_for(queue.idle.wait(), 5)
    end.set()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(running, 10)
    assert any(record.levelname == "CRITICAL" for record in caplog.records)
    told = [nack["id"] for nack in queue.said["nack"]]
    assert told == (["a"] if keeper == "_leases" else []), "what can still be handed back is"


async def test_a_settling_that_fails_in_an_unforeseen_way_loses_no_verdict() -> None:
    held = Held(Queue(), "a", "b")
    for job in held.jobs:
        held.settler.add(job, "ack", job.leased.ack(1))
    held.queue.failing = [httpx.Response(200, json={"results": [{"id": "a", "status": "acked"}]})]
    await held.settler.step()
    assert held.leases.held() == held.jobs
    await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["a", "b"]
    assert held.leases.held() == []


async def test_an_end_that_cannot_be_written_does_not_hold_up_others() -> None:
    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise KeyError("no items")

    held = Held(Queue(), "a", "b")
    held.settler.add(held.jobs[0], "ack", held.jobs[0].leased.ack(Hostile(x=1)))
    held.settler.add(held.jobs[1], "ack", held.jobs[1].leased.ack(1))
    for _ in range(2):
        await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["b"]
    assert [nack["id"] for nack in held.queue.said["nack"]] == ["a"]
    assert held.leases.held() == []


async def test_a_worker_whose_token_lacks_its_namespace_ends() -> None:
    queue = Queue()
    queue.failing = [problem(404, "not_found")] * 3
    worker = worker_on(queue)
    worker.task("t")(lambda job: None)
    with pytest.raises(errors.NotFound):
        await asyncio.wait_for(worker.run(signals=False), 5)


async def test_every_worker_of_a_loop_hears_a_signal() -> None:
    queues = [Queue(), Queue(), Queue()]
    workers = [worker_on(queue) for queue in queues]
    for worker in workers:
        worker.task("t")(lambda job: None)
    running = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.gather(*(queue.idle.wait() for queue in queues))
    workers[1].stop()
    await asyncio.wait_for(running[1], 5)  # one that has ended takes the signal from nobody
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*running), 5)


async def test_another_thread_stops_a_worker_at_once() -> None:
    """The loop sleeps in a long poll: it has to be woken, not only told."""
    waiting = threading.Event()

    def run() -> None:
        async def work() -> None:
            worker.task("t")(lambda job: None)
            running = asyncio.create_task(worker.run(signals=False))
            await queue.idle.wait()
            # Nothing else happens in this loop from here on.
            asyncio.get_running_loop().call_soon(waiting.set)
            await running

        asyncio.run(work())

    queue = Queue()
    worker = worker_on(queue)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert await asyncio.to_thread(waiting.wait, 5)
    worker.stop()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    worker.stop()  # and later it is nothing


class Both(Queue, httpx.BaseTransport):
    """A transport for coroutines and for threads."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"items": [], "next_cursor": None})


async def test_a_worker_of_a_blocking_client_goes_the_same_way() -> None:
    policy = RetryPolicy(attempts_max=3)
    queue = Both(leased("a"))
    client = Client(queue_url="http://q", dag_url="http://d", token="secret", transport=queue, retry=policy)
    worker = Worker(client, drain_s=5)
    worker.task("t")(lambda job: job.blocking_client is client)
    running = asyncio.create_task(worker.run(signals=False))
    await queue.heard("ack", 1)
    worker.stop()
    await asyncio.wait_for(running, 5)
    assert queue.said["ack"][0]["output"] is True
    assert worker.client.retry == policy and worker.client.endpoints == client.endpoints


def test_a_client_whose_transport_is_for_threads_only_is_refused() -> None:
    class Threads(httpx.BaseTransport):
        pass

    with pytest.raises(ValueError, match="AsyncBaseTransport"):
        Worker(Client(transport=Threads()))


async def test_a_thread_goes_the_way_of_the_workers_client() -> None:
    """A proxy, or a test's own service, is not gone around because a handler runs in a thread."""

    class WithTopics(Queue):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/topics"):
                self.calls.append("topics")
                return httpx.Response(200, json={"items": [], "next_cursor": None})
            return await super().handle_async_request(request)

    async def coroutine(job: Job) -> str:
        with pytest.raises(RuntimeError, match=r"job\.client"):
            job.blocking_client.topics()
        return "refused"

    queue = WithTopics(leased("a"))
    await working(queue, lambda job: job.blocking_client.topics(), lambda: queue.heard("ack", 1))
    assert queue.said["ack"][0]["output"] == []
    assert queue.calls.count("topics") == 1

    queue = WithTopics(leased("a"))
    await working(queue, coroutine, lambda: queue.heard("ack", 1))
    assert queue.said["ack"][0]["output"] == "refused"


DAG = {"id": "d1", "node": "scan", "generation": 2}


@pytest.mark.parametrize("part", ["expand", "client"])
async def test_what_a_plain_function_cannot_await_says_what_to_call(part: str) -> None:
    def handler(job: Job) -> None:
        if part == "expand":
            job.expand([])
        else:
            job.client.dag("d1").expand("scan", [])

    queue = Queue(leased("a", dag=DAG))
    await working(queue, handler, lambda: queue.heard("nack", 1))
    assert queue.said["ack"] == []
    assert f"job.{part} is for" in queue.said["nack"][0]["error"]
    assert "job.blocking_client" in queue.said["nack"][0]["error"]


class SlowToExpand(Queue):
    """Answers no expansion."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/expand"):
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


@pytest.mark.parametrize("begun", [False, True])
async def test_children_that_were_not_waited_for_are_no_success(begun: bool) -> None:
    kept: list[asyncio.Task[Any]] = []

    async def handler(job: Job) -> None:
        expanding = job.expand([Node("child", "t")])
        if begun:
            kept.append(asyncio.create_task(expanding))
            await asyncio.sleep(0)

    queue = SlowToExpand(leased("a", dag=DAG))
    await working(queue, handler, lambda: queue.heard("nack", 1))
    assert "await job.expand" in queue.said["nack"][0]["error"]
    assert queue.said["ack"] == []
    for task in kept:
        task.cancel()
        await asyncio.wait([task])


async def test_a_round_of_settling_that_breaks_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(Queue(), "a")
    held.settler.add(held.jobs[0], "ack", held.jobs[0].leased.ack(1))

    async def broken(*_: object) -> Any:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(held.settler, "_send", broken)
        await held.settler.step()
    assert held.leases.held() == held.jobs and len(held.slept) == 1
    await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["a"]
