"""What a worker does beside its handlers: it keeps leases and tells how jobs ended, also without the service."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Job, Leased
from headgate._http.transport import RetryPolicy
from headgate._ids import new_id, shard_of
from headgate._worker.leases import Leases
from headgate._worker.settler import Settler
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_worker import Queue


class Held:
    """A job whose lease is kept by hand, at a time that the test sets."""

    def __init__(self, queue: Queue, *names: str, lease_s: float = 60) -> None:
        self.now = 1_000.0
        self.queue = queue
        client = AsyncClient(queue_url="http://q", transport=queue, retry=RetryPolicy(attempts_max=1))
        self.client = client
        self.leases = Leases(client, "default", lambda: self.now)
        self.settler = Settler(client, "default", self.leases, self.sleep, lambda: self.now)
        self.jobs = [self.job(name, client, lease_s) for name in names]
        self.slept: list[float] = []

    def job(self, name: str, client: AsyncClient, lease_s: float) -> Job:
        item = Leased.parse(leased(name))
        job = Job(item, client=client, blocking=lambda: None, lease_s=lease_s, lease_ends_at=self.now + lease_s)
        self.leases.hold(job)
        return job

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)


async def test_leases_are_extended_together_when_half_is_over() -> None:
    held = Held(Queue(), "a", "b")
    held.now += 20
    assert (await held.leases.step(), held.leases.due_in_s()) == (0, 10)
    held.now += 10
    assert await held.leases.step() == 2
    assert [item["lease_s"] for item in held.queue.said["extend"]] == [60, 60]
    assert len(held.queue.calls) == 1
    assert held.leases.due_in_s() == 30


async def test_a_loop_that_stood_still_for_longer_than_a_lease_is_named_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held(Queue(), "a")
    held.leases._in_loop = lambda: ["resize of 'job/resize'"]
    held.leases._wakes_at = held.now + 30
    held.now += 75
    await held.leases.step()
    said = caplog.text
    assert held.jobs[0].lost == "lease_lost"
    assert all(
        part in said for part in ("stood still for 45.0 s", "Job('a'", "resize of 'job/resize'", "to_thread")
    )


async def test_a_lease_that_the_service_did_not_extend_blames_no_handler(caplog: pytest.LogCaptureFixture) -> None:
    held = Held(Queue(), "a")
    held.leases._wakes_at = held.now + 60
    held.now += 60
    await held.leases.step()
    assert held.jobs[0].lost == "lease_lost" and "stood still" not in caplog.text


@pytest.mark.parametrize("status", ["lease_lost", "cancelled", "not_found"])
async def test_a_lost_lease_cancels_its_handler_only_and_nothing_is_said_of_it(status: str) -> None:
    held = Held(Queue(), "a", "b")
    lost, kept = held.jobs
    lost.task = asyncio.create_task(asyncio.Event().wait())
    held.queue.statuses = {"a": status}
    held.now += 30
    await held.leases.step()
    assert (lost.lost, kept.lost) == (status, None)
    with pytest.raises(asyncio.CancelledError):
        await lost.task
    held.settler.add(lost, "ack", lost.leased.ack())
    held.settler.add(kept, "ack", kept.leased.ack())
    await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["b"]


async def test_a_lease_that_could_not_be_extended_is_tried_again_until_it_has_ended() -> None:
    held = Held(Queue(), "a")
    (job,) = held.jobs
    held.queue.failing = [httpx.ConnectError("refused")] * 10
    held.now += 30
    for _ in range(10):
        await held.leases.step()
        if job.lost:
            break
        assert held.leases.due_in_s() > 0
        held.now += held.leases.due_in_s()
    assert job.lost == "lease_lost"
    assert held.now == 1_060
    assert held.queue.calls.count("extend") == 3


async def test_verdicts_wait_for_a_service_that_is_away_and_their_leases_are_kept() -> None:
    held = Held(Queue(), "a")
    (job,) = held.jobs
    held.settler.add(job, "ack", job.leased.ack(7))
    held.queue.failing = [httpx.ConnectError("refused"), httpx.Response(502)]
    for _ in range(2):
        await held.settler.step()
        assert held.leases.held() == [job]
    await held.settler.step()
    assert held.queue.said["ack"] == [{"id": "a", "lease_token": "token-a", "output": 7}]
    assert held.leases.held() == []
    assert len(held.slept) == 2
    await asyncio.wait_for(held.settler.settled(), 60)


async def test_one_verdict_that_the_service_refuses_does_not_hold_up_the_others() -> None:
    held = Held(Queue(), "a", "b", "c")
    for job in held.jobs:
        held.settler.add(job, "ack", job.leased.ack(job.id))
    too_large = problem(413, "too_large", detail="the output is too large")
    held.queue.failing = [too_large, None, too_large, None]
    await held.settler.step()
    await held.settler.step()
    assert [ack["id"] for ack in held.queue.said["ack"]] == ["a", "c"]
    (nack,) = held.queue.said["nack"]
    assert nack["id"] == "b"
    assert "too large" in nack["error"]
    assert held.leases.held() == []


class Sick(Queue):
    """One shard does not answer: its elements are refused, or the call that holds one waits for ever."""

    def __init__(self, shard: int, *, silent: bool) -> None:
        super().__init__()
        self.shard, self.silent = shard, silent
        self.asked: list[list[int]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        ids = [item["id"] for item in json.loads(await request.aread())["items"]]
        self.asked.append([shard_of(item_id) for item_id in ids])
        if self.shard not in self.asked[-1]:
            return await super().handle_async_request(request)
        if self.silent:
            await asyncio.Event().wait()
        response = await super().handle_async_request(request)
        refused = {"status": "refused", "code": "shard_unavailable", "outcome": "unknown"}
        results = [
            {**result, **(refused if shard_of(result["id"]) == self.shard else {})}
            for result in response.json()["results"]
        ]
        return httpx.Response(200, json={"results": results})


@pytest.mark.parametrize("silent", [False, True])
async def test_a_shard_that_is_away_costs_no_lease_on_another(silent: bool) -> None:
    held = Held(Sick(1, silent=silent), new_id(0), new_id(1), new_id(2))
    well, sick, other = held.jobs
    held.now += 30
    assert held.leases.begin() == 3
    for _ in range(20):
        await asyncio.sleep(0)
    assert (well.lease_ends_at, other.lease_ends_at) == (1_090, 1_090), "answered beside the one that is not"
    held.now += 30
    held.leases.begin()
    assert (well.lost, sick.lost, other.lost) == (None, "lease_lost", None)
    for call in held.leases._calls:
        call.cancel()


async def test_long_leases_are_not_given_up_with_short_ones() -> None:
    """Half of what is left of a short lease is no time for the others of its call."""
    held = Held(Queue(), "long", lease_s=60)
    held.now += 29
    held.job("short", held.client, 2)
    held.now += 1
    assert await held.leases.step() == 2
    assert [[item["lease_s"]] for item in held.queue.said["extend"]] == [[60], [2]]
    assert len(held.queue.calls) == 2


async def test_verdicts_of_a_shard_that_is_away_hold_up_no_others() -> None:
    queue = Sick(1, silent=False)
    held = Held(queue, new_id(1), new_id(0), new_id(0))
    sick, first, second = held.jobs
    for job in (sick, first):
        held.settler.add(job, "ack", job.leased.ack())
    await held.settler.step()
    held.settler.add(second, "ack", second.leased.ack())
    await held.settler.step()
    assert queue.asked == [[1, 0], [0]], "left alone for now"
    assert held.slept == []
    assert held.leases.held() == [sick]
    held.now += 10
    queue.shard = -1
    await held.settler.step()
    assert held.leases.held() == []


async def test_a_shard_that_comes_back_is_tried_by_itself() -> None:
    queue = Sick(1, silent=False)
    held = Held(queue, new_id(1))
    (job,) = held.jobs
    settler = Settler(held.client, "default", held.leases)
    settling = asyncio.create_task(settler.run())
    settler.add(job, "ack", job.leased.ack())
    async with asyncio.timeout(5):
        while len(queue.asked) < 2:
            await asyncio.sleep(0.001)
        queue.shard = -1
        await settler.settled()
    settling.cancel()
    assert held.leases.held() == []


async def test_an_end_that_a_shard_refuses_for_good_is_said_plainly() -> None:
    class Strict(Queue):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/ack"):
                refused = {"id": "a", "status": "refused", "code": "invalid", "outcome": "none"}
                return httpx.Response(200, json={"results": [refused]})
            return await super().handle_async_request(request)

    held = Held(Strict(), "a")
    held.settler.add(held.jobs[0], "ack", held.jobs[0].leased.ack(1))
    for _ in range(2):
        await held.settler.step()
    assert "refused the ack: invalid" in held.queue.said["nack"][0]["error"]
    assert held.leases.held() == []


async def test_what_jobs_tell_of_their_progress_goes_at_once_and_then_together_twice_a_second() -> None:
    held = Held(Queue(), "a", "b")
    first, second = held.jobs
    first.progress(1, 10, "begun")
    assert await held.leases.step() == 1
    for done in range(2, 5):
        first.progress(done)
    second.progress(7.5)
    assert held.leases.due_in_s() == 0.5
    held.now += 0.5
    assert await held.leases.step() == 2
    told = [item["progress"] for item in held.queue.said["extend"]]
    assert told == [{"done": 1, "total": 10, "note": "begun"}, {"done": 4}, {"done": 7.5}]
    assert held.leases.due_in_s() == 30, "who tells nothing is asked for nothing"
    held.now += 30
    await held.leases.step()
    assert all("progress" not in item for item in held.queue.said["extend"][3:]), "it has been told"


async def test_progress_that_could_not_be_told_is_told_with_the_next_extension() -> None:
    held = Held(Queue(), "a")
    held.queue.failing = [httpx.ConnectError("refused")]
    held.jobs[0].progress(1)
    await held.leases.step()
    held.now += 12
    await held.leases.step()
    assert [item["progress"] for item in held.queue.said["extend"]] == [{"done": 1}]


async def test_progress_that_the_service_refuses_does_not_cost_the_lease() -> None:
    held = Held(Queue(), "a")
    held.queue.failing = [problem(422, "invalid")]
    held.jobs[0].progress(1)
    await held.leases.step()
    held.now += 12
    assert await held.leases.step() == 1
    assert "progress" not in held.queue.said["extend"][0] and held.jobs[0].lost is None


async def test_a_plain_function_tells_from_its_thread() -> None:
    held = Held(Queue(), "a")
    keeping = asyncio.create_task(held.leases.run())
    await asyncio.to_thread(held.jobs[0].progress, 3, 4)
    assert (await held.queue.heard("extend", 1))[0]["progress"] == {"done": 3, "total": 4}
    keeping.cancel()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ((float("nan"),), "done: must be a finite number"),
        ((-1,), "done: must be greater than or equal to 0"),
        ((1, float("inf")), "total: must be a finite number"),
        ((1, 2, "x" * 10_240), "note: must have at most 200 characters"),
        (("1",), "done: must be a valid number"),
    ],
)
async def test_progress_that_is_none_is_refused_where_it_is_told(told: tuple[Any, ...], why: str) -> None:
    held = Held(Queue(), "a")
    with pytest.raises(ValueError, match=f"job.progress: {why}"):
        held.jobs[0].progress(*told)
    assert await held.leases.step() == 0


async def test_what_may_have_been_cancelled_is_asked_for_at_once() -> None:
    held = Held(Queue(), "a", "b")
    lost, kept = held.jobs
    lost.task = asyncio.create_task(asyncio.Event().wait())
    held.queue.statuses = {"a": "cancelled"}
    held.leases.check(["a", "of another worker"])
    assert held.leases.due_in_s() == 0
    await held.leases.step()
    assert (lost.cancelled, kept.cancelled) == (True, False)
    with pytest.raises(asyncio.CancelledError):
        await lost.task


async def test_news_of_a_job_that_is_just_asked_for_or_on_its_way_here_is_not_lost() -> None:
    held = Held(Queue(), "a")
    held.now += 30
    held.leases.begin()
    held.leases.check(["a", "b"])
    await held.leases.step()
    assert held.leases.due_in_s() == 0, "the answer may be from before"
    held.queue.statuses = {"a": "cancelled"}
    await held.leases.step()
    assert held.jobs[0].cancelled
    coming = held.job("b", held.client, 60)
    assert held.leases.due_in_s() == 0, "it was cancelled while it came"
    held.leases.drop(coming)
    held.now += 20
    held.job("b", held.client, 60)
    assert held.leases.due_in_s() > 0, "old news is none"
