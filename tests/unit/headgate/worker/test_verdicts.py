"""Errors that do something when they are looked at, and handlers that spoil their job: there is a verdict, or no
lease."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headgate import App, AsyncClient, Job, Retry
from headgate._http.transport import RetryPolicy
from headgate.errors import Fail
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.worker.test_cut_off import told
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working
from tests.unit.headgate.worker.test_worker_ends import Panic


def raising(base: type[Exception], look: BaseException, **given: Any) -> BaseException:
    """An error of this kind that ends in `look` when somebody wants to see it."""

    class Hostile(base):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise look

        __repr__ = __str__

    return Hostile(**given)


class Leaving(dict[str, Any]):
    def items(self) -> Any:
        sys.exit("in the middle of the JSON")


class Hidden(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise Panic("no name")


class Nameless(Exception, metaclass=Hidden):
    pass


class Asked(Exception):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise SystemExit(7)


LOOKS: dict[str, BaseException] = {
    "panic": raising(ValueError, Panic("as it is looked at")),
    "exit": raising(ValueError, SystemExit(9)),
    "interrupt": raising(ValueError, KeyboardInterrupt()),
    "fail": raising(Fail, Panic("as it is looked at")),
    "retry": raising(Retry, SystemExit(9), delay_s=0.1),
    "twice": raising(Retry, Asked(), delay_s=0.1),
    "metadata": Retry("later", metadata={"a": Leaving(x=1)}),
    "a group": BaseExceptionGroup("several", [raising(ValueError, SystemExit(9))]),
    "nameless": Nameless("of a class that hides its name"),
}


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("name", LOOKS)
async def test_an_error_that_raises_when_it_is_looked_at_is_a_verdict_all_the_same(
    name: str, threaded: bool
) -> None:
    """It kept its lease for as long as the worker lived, or took the worker, and all that it held, with it."""

    def function(job: Job) -> str:
        if job.id == "bad":
            raise LOOKS[name]
        return "good"

    async def coroutine(job: Job) -> str:
        return function(job)

    queue = Queue(leased("bad"), leased("good"))
    ends: Callable[[], Any] = lambda: asyncio.gather(queue.heard("nack", 1), queue.heard("ack", 1))  # noqa: E731
    worker = await working(queue, function if threaded else coroutine, ends)
    (nack,) = queue.said["nack"]
    assert nack["id"] == "bad" and nack["error"] and nack.get("costs_attempt", True)
    assert nack.get("final", False) is (name == "fail"), "what it is does not hang on what it says"
    assert [ack["id"] for ack in queue.said["ack"]] == ["good"]
    assert worker._leases.held() == []


@pytest.mark.parametrize("threaded", [False, True])
async def test_an_error_that_may_not_be_asked_for_its_class_is_a_verdict_too(threaded: bool) -> None:
    def function(_job: Job) -> None:
        raise Asked("of a class that one may not ask for")

    async def coroutine(job: Job) -> None:
        function(job)

    queue = Queue(leased("a"))
    await working(queue, function if threaded else coroutine, lambda: queue.heard("nack", 1))
    assert "Asked" in told(queue)["a"]["error"]


async def test_an_output_is_what_it_was_as_the_handler_returned_it() -> None:
    """It is written once more where it is sent, with those of others: whose leases all ended with it."""

    class Once(dict[str, Any]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            if self.looks > 1:
                sys.exit("looked at again")
            return super().items()

    queue = Queue(leased("a"), leased("b"))
    await working(queue, lambda job: Once(id=job.id), lambda: queue.heard("ack", 2))
    assert {ack["id"]: ack["output"] for ack in queue.said["ack"]} == {"a": {"id": "a"}, "b": {"id": "b"}}


async def test_a_job_of_which_nothing_can_be_said_loses_its_lease() -> None:
    async def handler(job: Job) -> str:
        if job.id == "bad":
            job.leased = None  # type: ignore[assignment]
        return "good"

    queue = Queue(leased("bad"), leased("good"))
    worker = await working(queue, handler, lambda: queue.heard("ack", 1))
    assert [ack["id"] for ack in queue.said["ack"]] == ["good"] and queue.said["nack"] == []
    assert worker._leases.held() == [], "a lease that is still extended is never given to anybody else"


class OfALibrary(Exception):
    """What a library makes of a cancel."""


@pytest.mark.parametrize(
    ("error", "costs_attempt"),
    [(OfALibrary("the pool was closed"), False), (Fail("no use"), True), (Retry("later"), True)],
)
async def test_what_a_handler_makes_of_the_cancel_of_a_drain_costs_an_attempt_only_where_it_says_so(
    error: Exception, costs_attempt: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def handler(_job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    queue = Queue(leased("a"))
    worker = worker_on(queue, drain_s=0.0)
    worker.task("t")(handler)
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.wait_for(begun.wait(), 5)
    worker.stop()
    await asyncio.wait_for(running, 10)
    nack = told(queue)["a"]
    assert nack.get("costs_attempt", True) is costs_attempt
    if not costs_attempt:
        assert any("the pool was closed" in record.getMessage() for record in caplog.records)


async def test_nor_does_what_a_function_of_an_app_makes_of_it() -> None:
    begun, app = asyncio.Event(), App("mine")

    @app.job
    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OfALibrary from None

    queue = Queue(leased("a", topic=waits.topic, payload=waits.call().payload(lambda _call: "")))
    client = AsyncClient(queue_url="http://q", transport=queue, retry=RetryPolicy(attempts_max=1))
    worker = app.worker(client=client, drain_s=0.0)
    running = asyncio.create_task(worker.run(signals=False))
    await asyncio.wait_for(begun.wait(), 5)
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert told(queue)["a"]["costs_attempt"] is False


async def test_an_error_of_its_own_as_the_worker_is_to_hurry_costs_an_attempt() -> None:
    async def handler(_job: Job) -> None:
        worker.stop()
        worker.stop()
        raise ValueError("a bug")

    queue = Queue(leased("a"))
    worker = worker_on(queue)
    worker.task("t")(handler)
    await asyncio.wait_for(worker.run(signals=False), 10)
    assert "a bug" in told(queue)["a"]["error"] and told(queue)["a"].get("costs_attempt", True)
