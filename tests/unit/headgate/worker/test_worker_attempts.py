"""A task's `max_attempts`: what nobody gave an end of its own is not tried for ever."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headgate._worker.worker import ATTEMPTS_MAX, Fail, Job, Retry
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working


class Standing(Queue):
    """Says of each item how many attempts it allows itself."""

    def __init__(self, *items: dict[str, Any], allowed: int | None = 0) -> None:
        super().__init__(*items)
        self.allowed = allowed
        self.asked: list[str] = []
        self.error: str | None = None  # what was told last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/items/states"):
            return await super().handle_async_request(request)
        ids = json.loads(await request.aread())["ids"]
        self.asked += ids
        if self.allowed is None:
            return problem(503, "shard_unavailable")
        found = {
            "status": "found",
            "topic": "t",
            "state": "leased",
            "max_attempts": self.allowed,
            "error": self.error,
        }
        return httpx.Response(200, json={"results": [{"id": item_id, **found} for item_id in ids]})


def failing(error: Exception) -> Callable[[Job], None]:
    def handler(_job: Job) -> None:
        raise error

    return handler


BUG = ValueError("a bug")


@pytest.mark.parametrize("attempt", [1, ATTEMPTS_MAX - 1])
async def test_before_the_last_attempt_nothing_is_asked_and_the_item_comes_again(attempt: int) -> None:
    queue = Standing(leased("a", attempt=attempt))
    await working(queue, failing(BUG), lambda: queue.heard("nack", 1))
    assert "final" not in queue.said["nack"][0] and queue.asked == []


@pytest.mark.parametrize("error", [BUG, Retry("later", delay_s=5)])
async def test_the_last_attempt_of_an_item_without_an_end_is_its_death(error: Exception) -> None:
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX))
    await working(queue, failing(error), lambda: queue.heard("nack", 1))
    (nack,) = queue.said["nack"]
    assert nack["final"] and str(error) in nack["error"]


async def test_an_output_that_cannot_be_told_is_a_failure_like_others() -> None:
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX))
    await working(queue, lambda _job: {1, 2}, lambda: queue.heard("nack", 1))
    assert queue.said["nack"][0]["final"]


@pytest.mark.parametrize("allowed", [ATTEMPTS_MAX, ATTEMPTS_MAX + 1, 1_000])
async def test_an_item_that_says_itself_how_often_is_left_to_the_queue(allowed: int) -> None:
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX), leased("b", attempt=ATTEMPTS_MAX + 5), allowed=allowed)
    await working(queue, failing(BUG), lambda: queue.heard("nack", 2))
    assert not any("final" in nack for nack in queue.said["nack"])
    assert set(queue.asked) == {"a", "b"}


async def test_deliveries_that_cost_nothing_are_not_counted() -> None:
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX))
    handler = failing(Retry("busy", costs_attempt=False))
    await working(queue, handler, lambda: queue.heard("nack", 1))
    assert "final" not in queue.said["nack"][0] and queue.asked == []


async def test_an_item_that_kills_its_workers_is_given_up_unseen() -> None:
    """No worker lived to nack it; the one that gets it once too often does not try."""
    handled: list[str] = []
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX + 1), leased("b", attempt=ATTEMPTS_MAX))
    await working(queue, lambda job: handled.append(job.id), lambda: queue.heard("nack", 1))
    (nack,) = queue.said["nack"]
    assert (nack["id"], nack["final"]) == ("a", True) and "20 deliveries have failed" in nack["error"]
    assert handled == ["b"]


async def test_what_is_given_up_dies_with_the_last_error_that_was_told() -> None:
    """As of an output that the service refuses: that is told when it is too late to say that it was the last."""
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX + 1))
    queue.error = "x" * 4_000 + "the service refused the ack: too_large"
    await working(queue, lambda _job: None, lambda: queue.heard("nack", 1))
    (nack,) = queue.said["nack"]
    assert nack["final"] and nack["error"].endswith("the service refused the ack: too_large")
    assert "20 deliveries have failed" in nack["error"]


async def test_where_nobody_can_tell_the_item_comes_again() -> None:
    queue = Standing(leased("a", attempt=ATTEMPTS_MAX), leased("b", attempt=ATTEMPTS_MAX + 1), allowed=None)
    await working(queue, failing(BUG), lambda: queue.heard("nack", 2))
    assert not any("final" in nack for nack in queue.said["nack"])


async def test_success_at_the_last_attempt_is_success_and_fail_is_final_unasked() -> None:
    def handler(job: Job) -> str:
        if job.id == "b":
            raise Fail("never")
        return "done"

    queue = Standing(leased("a", attempt=ATTEMPTS_MAX), leased("b", attempt=ATTEMPTS_MAX))
    await working(queue, handler, lambda: queue.heard("ack", 1))
    assert [ack["id"] for ack in queue.said["ack"]] == ["a"] and queue.asked == []


@pytest.mark.parametrize(("max_attempts", "attempt", "is_final"), [(3, 3, True), (3, 2, False), (0, 500, False)])
async def test_a_task_says_how_often(max_attempts: int, attempt: int, is_final: bool) -> None:
    queue = Standing(leased("a", attempt=attempt))
    worker = worker_on(queue)

    @worker.task("t", max_attempts=max_attempts)
    async def handler(_job: Job) -> None:
        worker.stop()
        raise BUG

    await worker.run(signals=False)
    assert queue.said["nack"][0].get("final", False) is is_final


def test_a_negative_number_of_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        worker_on(Queue()).task("t", max_attempts=-1)
