"""The worker against a scripted queue: each end of a job, lost leases, drains, a service that comes and goes."""

import asyncio
import json
import logging
import math
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Throttled, errors
from headgate._http.transport import RetryPolicy
from headgate._worker.worker import Fail, Job, Retry, Worker
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem


class Queue(httpx.AsyncBaseTransport):
    """Hands out `items` once, then lets dequeues wait; remembers acks, nacks and extends."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = list(items)
        self.said: dict[str, list[dict[str, Any]]] = {"ack": [], "nack": [], "extend": [], "logs": []}
        self.calls: list[str] = []
        self.counts: list[int] = []
        self.settled: list[int] = []  # with dequeues, each
        self.waits_s: list[tuple[bool, float]] = []  # of dequeues: whether one settles, and how long it waits
        self.idle = asyncio.Event()
        self.failing: list[Any] = []
        self.statuses: dict[str, str] = {}
        self.changed = asyncio.Condition()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        verb = request.url.path.rsplit("/", 1)[1]
        if verb == "workers":
            return problem(404, "not_found")
        body = json.loads(await request.aread())
        self.calls.append(verb)
        if self.failing and (failure := self.failing.pop(0)):
            if isinstance(failure, Exception):
                raise failure
            return failure
        if verb == "dequeue":
            return await self.dequeue(body)
        return httpx.Response(200, json={"results": await self.settle(verb, body["items"])})

    async def settle(self, verb: str, elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What became of each."""
        async with self.changed:
            self.said[verb] += elements
            self.changed.notify_all()
        status = {"ack": "acked", "nack": "requeued", "extend": "extended", "logs": "written"}[verb]
        return [{"id": item["id"], "status": self.statuses.get(item["id"], status)} for item in elements]

    async def dequeue(self, body: Any) -> httpx.Response:
        count, settle = body["topics"][0]["count"], body.get("settle")
        self.counts.append(count)
        self.waits_s.append((bool(settle), body.get("wait_s", 0)))
        answer: dict[str, Any] = {}
        if settle is not None:
            self.settled.append(sum(map(len, settle.values())))
            answer["results"] = {
                f"{verb}s": await self.settle(verb, settle[f"{verb}s"]) for verb in ("ack", "nack")
            }
        found, self.items = self.items[:count], self.items[count:]
        if not found:
            self.idle.set()
            if settle is None:
                await asyncio.Event().wait()
        return httpx.Response(200, json={"items": found, **answer})

    async def heard(self, verb: str, count: int) -> list[dict[str, Any]]:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: len(self.said[verb]) >= count), 5)
        return self.said[verb]


def worker_on(queue: Queue, **settings: Any) -> Worker:
    client = AsyncClient(queue_url="http://q", transport=queue, retry=RetryPolicy(attempts_max=1))
    return Worker(client, **settings)


async def working(
    queue: Queue, handler: Callable[[Job], Any], until: Callable[[], Awaitable[Any]], **settings: Any
) -> Worker:
    """Run a worker with this handler until something has happened, then drain it."""
    worker = worker_on(queue, **{"drain_s": 5.0, **settings})
    worker.task("t", slots=4)(handler)
    running = asyncio.create_task(worker.run(signals=False))
    try:
        await asyncio.wait_for(until(), 5)
    finally:
        worker.stop()
        await asyncio.wait_for(running, 10)
    return worker


async def test_what_a_handler_returns_is_the_items_output() -> None:
    async def handler(job: Job) -> Any:
        return {"double": job.payload * 2} if job.payload else None

    queue = Queue(leased("a", payload=21), leased("b"))
    await working(queue, handler, lambda: queue.heard("ack", 2))
    assert sorted(queue.said["ack"], key=lambda ack: ack["id"]) == [
        {"id": "a", "lease_token": "token-a", "output": {"double": 42}},
        {"id": "b", "lease_token": "token-b"},
    ]


class QueueAndDag(Queue):
    """Answers what a node is given, too."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            self.calls.append(request.url.raw_path.decode())
            return httpx.Response(200, json={"a": [1], "b": None})
        return await super().handle_async_request(request)


async def test_inputs_too_large_for_an_item_are_fetched_before_the_handler_is_called() -> None:
    path = "/v1/namespaces/default/dags/d1/node/inputs?key="
    dag = {"id": "d1", "node": "a/b", "generation": 1}
    queue = QueueAndDag(
        leased(id="1", dag=dag, inputs={"$ref": f"{path}a%2Fb"}),
        # What only looks like one: another node's, and one that an upstream called `$ref` gave.
        leased(id="2", dag=dag, inputs={"$ref": f"{path}other"}),
        leased(id="3", dag=dag, inputs={"$ref": f"{path}a%2Fb", "c": 1}),
        leased(id="4", inputs={"$ref": f"{path}a%2Fb"}),
    )

    async def handler(job: Job) -> Any:
        return job.inputs

    await working(queue, handler, lambda: queue.heard("ack", 4))
    given = {ack["id"]: ack["output"] for ack in queue.said["ack"]}
    assert given["1"] == {"a": [1], "b": None}
    assert all("$ref" in given[item_id] for item_id in "234")
    assert [call for call in queue.calls if call.startswith("/")] == [f"{path}a%2Fb"]


async def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_others() -> None:
    both = threading.Barrier(2, timeout=5)
    names: list[str] = []

    def handler(job: Job) -> str:
        both.wait()
        names.append(threading.current_thread().name)
        return job.id

    queue = Queue(leased("a"), leased("b"))
    await working(queue, handler, lambda: queue.heard("ack", 2))
    assert names == ["headgate-t"] * 2
    assert {ack["output"] for ack in queue.said["ack"]} == {"a", "b"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Retry("busy", delay_s=7, costs_attempt=False), {"delay_s": 7, "costs_attempt": False, "error": "busy"}),
        (Retry("later", metadata={"n": 1}), {"metadata": {"n": 1}, "costs_attempt": True, "error": "later"}),
        (
            Throttled(7_200, metadata={"n": 1}),
            {
                "delay_s": 7_200,
                "throttle_s": 3_600,
                "metadata": {"n": 1},
                "costs_attempt": False,
                "error": "the handler was told to slow down",
            },
        ),
        (Fail("never"), {"final": True, "error": "never"}),
        (Fail(), {"final": True, "error": "failed"}),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_what_a_handler_raises_is_a_nack(error: Exception, expected: dict[str, Any], threaded: bool) -> None:
    async def coroutine(_job: Job) -> None:
        raise error

    def function(_job: Job) -> None:
        raise error

    queue = Queue(leased("a"))
    await working(queue, function if threaded else coroutine, lambda: queue.heard("nack", 1))
    assert queue.said["nack"] == [{"id": "a", "lease_token": "token-a", **expected}]
    assert queue.said["ack"] == []


@pytest.mark.parametrize(
    ("status", "told"), [("requeued", "is given back"), ("dead", "that was its last attempt")]
)
async def test_what_became_of_an_item_is_logged_by_what_the_service_says(
    caplog: pytest.LogCaptureFixture, status: str, told: str
) -> None:
    async def handler(_job: Job) -> None:
        raise ValueError("a bug")

    caplog.set_level("INFO", "headgate._worker")
    queue = Queue(leased("a"))
    queue.statuses["a"] = status
    await working(queue, handler, lambda: queue.heard("nack", 1))
    said = [record.getMessage() for record in caplog.records]
    assert {end for end in ("is given back", "that was its last attempt") for line in said if end in line} == {
        told
    }


async def test_a_bug_in_a_handler_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Without it the programmer sees the error's name again and again, and not the line."""

    async def handler(job: Job) -> None:
        if job.id == "b":
            raise Fail("meant so")
        raise ValueError("a bug")

    await working(queue := Queue(leased("a"), leased("b")), handler, lambda: queue.heard("nack", 2))
    (record,) = [record for record in caplog.records if record.name == "headgate._worker"]
    assert record.exc_info is not None and "a bug" in record.getMessage()
    told = [nack["error"] for nack in queue.said["nack"] if not nack.get("final")]
    assert len(told) == 1 and told[0].count("  File ") == 1, "the handler's own lines, not the worker's"
    assert told[0].rstrip().endswith("ValueError: a bug") and "in handler" in told[0]


async def test_a_bug_in_a_handler_is_told_with_its_traceback_and_without_what_cannot_be_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="headgate._worker")  # such a line is more than a report can hold

    async def handler(_job: Job) -> None:
        raise ValueError("bad \x00 \ud800 value" + "x" * 10_000 + "the end")

    queue = Queue(leased("a"))
    await working(queue, handler, lambda: queue.heard("nack", 1))
    text = queue.said["nack"][0]["error"]
    assert text.rstrip().endswith("the end")
    assert len(text) <= 4_000
    assert "\x00" not in text


async def test_an_output_without_a_json_form_is_a_nack_and_harms_no_other() -> None:
    async def handler(job: Job) -> Any:
        return {1, 2} if job.id == "a" else "fine"

    queue = Queue(leased("a"), leased("b"))
    await working(queue, handler, lambda: asyncio.gather(queue.heard("nack", 1), queue.heard("ack", 1)))
    assert "output" in queue.said["nack"][0]["error"]
    assert queue.said["ack"][0]["id"] == "b"


async def test_items_are_taken_only_for_free_slots() -> None:
    release = asyncio.Event()
    running: set[str] = set()
    most = 0

    async def handler(job: Job) -> None:
        nonlocal most
        running.add(job.id)
        most = max(most, len(running))
        if len(running) == 4:
            release.set()
        await release.wait()
        running.discard(job.id)

    queue = Queue(*[leased(str(number)) for number in range(10)])
    await working(queue, handler, lambda: queue.heard("ack", 10), prefetch=0)
    assert most == 4
    assert queue.counts[0] == 4
    assert max(queue.counts) == 4


async def test_busy_slots_are_not_asked_for() -> None:
    async def handler(_job: Job) -> None:
        await asyncio.Event().wait()

    queue = Queue(*[leased(str(number)) for number in range(3)])
    await working(queue, handler, queue.idle.wait, drain_s=0)
    assert queue.counts == [4, 1]


async def test_a_service_that_is_away_is_waited_for() -> None:
    async def handler(_job: Job) -> None:
        return None

    queue = Queue(leased("a"))
    queue.failing = [httpx.ConnectError("refused"), problem(503, "unavailable"), httpx.Response(500), None]
    queue.failing += [httpx.ReadError("reset"), problem(503, "unavailable", outcome="unknown")]
    await working(queue, handler, lambda: queue.heard("ack", 1))
    assert queue.said["ack"] == [{"id": "a", "lease_token": "token-a"}]


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_a_service_that_refuses_the_worker_ends_it(status: int) -> None:
    queue = Queue()
    queue.failing = [problem(status, "no")]
    worker = worker_on(queue)
    worker.task("t")(lambda job: None)
    with pytest.raises(errors.HeadgateError):
        await asyncio.wait_for(worker.run(signals=False), 5)


async def test_a_drain_lets_handlers_finish_and_takes_nothing_more() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_job: Job) -> str:
        started.set()
        await go_on.wait()
        return "finished"

    queue = Queue(leased("a"))
    worker = worker_on(queue, drain_s=30)
    worker.task("t", slots=2)(handler)
    running = asyncio.create_task(worker.run(signals=False))
    await started.wait()
    await queue.idle.wait()
    worker.stop()
    queue.items.append(leased("b"))
    go_on.set()
    await asyncio.wait_for(running, 5)
    assert [ack.get("output") for ack in queue.said["ack"]] == ["finished"]
    assert queue.items
    assert queue.said["nack"] == []


@pytest.mark.parametrize("second_stop", [True, False])
async def test_what_does_not_finish_in_time_is_handed_back_at_no_cost(second_stop: bool) -> None:
    started = asyncio.Event()

    async def handler(_job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    queue = Queue(leased("a"))
    worker = worker_on(queue, drain_s=30 if second_stop else 0)
    worker.task("t")(handler)
    running = asyncio.create_task(worker.run(signals=False))
    await started.wait()
    worker.stop()
    if second_stop:
        worker.stop()
    await asyncio.wait_for(running, 5)
    assert [(nack["id"], nack["costs_attempt"]) for nack in queue.said["nack"]] == [("a", False)]


async def test_a_thread_that_never_ends_does_not_keep_the_worker() -> None:
    started, end = threading.Event(), threading.Event()
    daemons: list[bool] = []

    def handler(_job: Job) -> None:
        daemons.append(threading.current_thread().daemon)
        started.set()
        end.wait(30)

    queue = Queue(leased("a"))

    async def until() -> None:
        await asyncio.to_thread(started.wait, 5)

    await working(queue, handler, until, drain_s=0)
    end.set()
    assert queue.said["nack"][0]["costs_attempt"] is False
    assert daemons == [True], "the process could not end"


async def test_sigterm_drains() -> None:
    queue = Queue()
    worker = worker_on(queue)
    worker.task("t")(lambda job: None)
    running = asyncio.create_task(worker.run())
    await queue.idle.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 5)


def test_a_worker_is_checked_before_it_runs() -> None:
    worker = Worker()
    with pytest.raises(ValueError, match="no task"):
        asyncio.run(worker.run())
    worker.task("t")(lambda job: None)
    with pytest.raises(ValueError, match="already"):
        worker.task("t")(lambda job: None)
    with pytest.raises(ValueError, match="slots"):
        worker.task("u", slots=0)


@pytest.mark.parametrize("retry_after_s", [-1, math.nan, math.inf, 31 * 86_400])
def test_a_time_that_no_topic_can_be_throttled_for_is_refused(retry_after_s: float) -> None:
    with pytest.raises(ValueError, match="retry_after_s="):
        Throttled(retry_after_s)
