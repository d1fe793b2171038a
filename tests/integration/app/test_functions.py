"""Functions as jobs: sent and awaited, their arguments and results, what they raise, and what they are given."""

import asyncio
import traceback
import uuid
from datetime import UTC, datetime
from types import ModuleType

import pytest

from headgate import (
    App,
    AppWorker,
    Fail,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobTimedOut,
    NoResult,
    NotDone,
    RemoteTraceback,
    ResultGone,
    WrongArguments,
    new_id,
)
from headgate._app.unserved import Unserved
from headgate.errors import Conflict

pytestmark = pytest.mark.usefixtures("worker")


async def test_a_job_gives_its_result_in_coroutines_and_in_threads(media: ModuleType) -> None:
    job = await media.resize.enqueue("s3://a", width=320)
    assert await job.aresult(timeout_s=30) == "s3://a@320"
    assert await job.astatus() == "succeeded"

    def blocking() -> tuple[str, str, bool]:
        job = media.resize.enqueue("s3://b")
        return job.result(timeout_s=30), job.status(), job.wait(1)

    assert await asyncio.to_thread(blocking) == ("s3://b@640", "succeeded", True)
    again = media.app.handle(job.id)
    assert await again.aresult(timeout_s=5) == "s3://a@320"
    assert await media.resize.job(job.id).aresult() == "s3://a@320"


async def test_values_keep_their_types_on_the_way(media: ModuleType) -> None:
    page = media.Page("http://a", datetime.now(UTC), b"\xff\x00")
    book = uuid.uuid4()
    job = await media.bind.aenqueue([page], title="t", book=book)
    assert await job.aresult(30) == media.Book(title="t", pages=[page], id=book)


async def test_a_function_is_given_its_job_and_what_the_worker_shares(media: ModuleType) -> None:
    job = await media.about.enqueue()
    assert await job.aresult(30) == {"attempt": 1, "closed": False, "shared": True}


async def test_a_result_raises_what_the_function_raised(media: ModuleType) -> None:
    with pytest.raises(ValueError) as caught:
        await (await media.boom.enqueue("bad")).aresult(30)
    assert caught.value.args == ("bad", 7)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(caught.value))
    assert "raise ValueError(text, 7)" in shown and "in boom" in shown

    with pytest.raises(media.Strange) as strange:
        await (await media.strange.enqueue(3)).aresult(30)
    assert (strange.value.level, str(strange.value)) == (3, "odd")


async def test_attempts_and_retries_are_as_the_function_says(media: ModuleType) -> None:
    assert await (await media.third_time.enqueue()).aresult(30) == 3
    assert await (await media.again.enqueue()).aresult(30) == "done"
    with pytest.raises(OSError, match="not yet"):
        await (await media.third_time.options(max_attempts=2).enqueue()).aresult(30)


@pytest.mark.parametrize("name", ["slow", "slow_thread"])
async def test_an_attempt_that_takes_too_long_has_failed(media: ModuleType, name: str) -> None:
    with pytest.raises(JobTimedOut, match=r"longer than 0\.2 s"):
        await (await getattr(media, name).enqueue(3.0)).aresult(30)


async def test_a_result_of_another_type_than_annotated_is_a_failure(media: ModuleType) -> None:
    with pytest.raises(TypeError, match="returned what it is not annotated with"):
        await (await media.lies.enqueue()).aresult(30)


async def test_many_jobs_are_one_call_of_a_batch(media: ModuleType) -> None:
    jobs = await asyncio.gather(*(media.index.aenqueue(f"page {number}") for number in range(7)))
    counts = [await job.aresult(30) for job in jobs]
    assert max(counts) > 1 and len(counts) == 7
    assert await (await media.index.enqueue(["a", "b", "c"])).aresult(30) == [3, 3, 3]
    even, odd = await media.picky.aenqueue(2), await media.picky.aenqueue(3)
    assert await even.aresult(30) == 2
    with pytest.raises(Fail, match="odd"):
        await odd.aresult(30)


async def test_wrong_arguments_are_seen_before_anything_is_sent(media: ModuleType) -> None:
    for call in (
        media.resize.enqueue,
        lambda: media.resize.enqueue("a", widht=3),
        lambda: media.resize.enqueue("a", width="wide"),
        lambda: media.stitch.enqueue([1], title="t"),
        lambda: media.resize.options().enqueue("a", delay_s=3),
    ):
        with pytest.raises(WrongArguments):
            call()
    with pytest.raises(TypeError, match="no option 'dealy_s'"):
        media.resize.options(dealy_s=3)


async def test_what_cannot_be_called_ends_at_once(media: ModuleType) -> None:
    client = media.app.client
    payloads = {
        "no function 'gone'": {"fn": "gone", "v": 1, "args": {}},
        "`src` is missing": {"fn": "resize", "v": 1, "args": {}},
        "`more` is no argument": {"fn": "resize", "v": 1, "args": {"src": "a", "more": 1}},
        "is no call of a function": {"hello": 1},
        "keep the older function beside": {"fn": "resize", "v": 0, "args": {"src": "a"}},
    }
    for said, payload in payloads.items():
        dag = await asyncio.to_thread(
            client.create_dag,
            {"name": "resize", "nodes": [{"key": "resize", "topic": "job/resize", "payload": payload}]},
        )
        with pytest.raises((JobFailed, Fail), match=said):
            await media.resize.job(dag.id).aresult(30)


async def test_a_function_that_no_worker_has_ends_clearly_and_one_that_is_served_elsewhere_waits(
    media: ModuleType, worker: AppWorker
) -> None:
    """Of the first nobody knows; for the second somebody asks, and for the third a worker has no slot free."""
    other = App(media.app.namespace, client=media.app.client)
    jobs: dict[str, list[JobHandle[None]]] = {}
    for name in ("busy", "busy", "gone", "served"):
        function = other.functions.get(name) or other.job(name=name)(lambda: None)
        jobs.setdefault(name, []).append(await function.enqueue())
    (_,) = await worker.client.dequeue({"job/busy": 1}, wait_s=5.0)
    unserved = Unserved(worker.client, worker.namespace, worker._tasks.keys, after_s=0.5)
    async with asyncio.timeout(30):
        while not await unserved.look():
            # Asks for it, with a count that its item is not in.
            await worker.client.pause_topic("job/served")
            await worker.client.dequeue({"job/served": 1})
            await worker.client.resume_topic("job/served")
    assert await unserved.look() == 0
    with pytest.raises(JobFailed, match="no worker has a function 'gone'"):
        await jobs["gone"][0].aresult(30)
    # Either of the two may be the one that was taken.
    assert sorted([await job.astatus() for job in jobs["busy"]]) == ["queued", "running"]
    assert await jobs["served"][0].astatus() == "queued"
    await other.aclose()


async def test_a_newer_version_is_left_to_newer_workers(media: ModuleType, worker: AppWorker) -> None:
    other = App(media.app.namespace, client=media.app.client)
    newer = other.job(name="resize", version=2)(lambda src: src)
    job = await newer.enqueue("a")
    async with asyncio.timeout(30):
        while worker.finished == 0:
            await asyncio.sleep(0.02)
    assert await job.astatus() in ("delayed", "queued", "running")
    await job.acancel()
    await other.aclose()


async def test_a_key_makes_one_job(media: ModuleType) -> None:
    first = await media.resize.enqueue("a", key="order-7")
    assert (await media.resize.enqueue("a", key="order-7")).id == first.id
    with pytest.raises(Conflict, match="other arguments"):
        await media.resize.enqueue("b", key="order-7")
    unique = await media.resize.enqueue("u", unique_for_s=3600)
    assert (await media.resize.enqueue("u", unique_for_s=3600)).id == unique.id
    assert (await media.resize.enqueue("v", unique_for_s=3600)).id != unique.id
    keyed = await media.resize.enqueue("w", key="user-1", unique_for_s=3600)
    assert (await media.resize.enqueue("x", key="user-1", unique_for_s=3600)).id == keyed.id


async def test_a_job_may_wait_and_be_cancelled(media: ModuleType) -> None:
    job = await media.resize.enqueue("a", delay_s=3600)
    async with asyncio.timeout(20):
        while await job.astatus() != "delayed":  # the queue is given it a moment later
            await asyncio.sleep(0.02)
    with pytest.raises(NotDone, match=r"within 0\.1 s"):
        await job.aresult(timeout_s=0.1)
    await job.acancel("not wanted")
    with pytest.raises(JobCancelled, match="not wanted"):
        await job.aresult(timeout_s=30)
    assert await job.astatus() == "cancelled"


async def test_a_failed_job_is_retried(media: ModuleType) -> None:
    job = await media.boom.enqueue("bad")
    assert await job.await_end(30)
    await job.aretry()
    with pytest.raises(ValueError):
        await job.aresult(30)


async def test_a_job_without_result_is_a_bare_item(media: ModuleType, tmp_path: object, worker: AppWorker) -> None:
    path = f"{tmp_path}/touched"
    job = await media.touch.enqueue(path)
    assert [dag.id for dag in await asyncio.to_thread(media.app.client.dags, name="touch")] == []
    with pytest.raises(NoResult):
        await job.aresult()
    async with asyncio.timeout(20):
        while worker.finished == 0:
            await asyncio.sleep(0.02)
        with pytest.raises(ResultGone, match="nothing is kept of how"):
            while await job.astatus() == "running":
                await asyncio.sleep(0.02)


async def test_what_is_not_there_says_so(media: ModuleType) -> None:
    with pytest.raises(ResultGone):
        await media.resize.job(new_id(0)).aresult()
    job = media.resize.enqueue("a")
    with pytest.raises(RuntimeError, match="await"):
        _ = job.id
    with pytest.raises(RuntimeError, match="aresult"):
        job.result()
    await job


async def test_a_raw_task_runs_beside_the_functions(media: ModuleType) -> None:
    dag = await asyncio.to_thread(
        media.app.client.create_dag, {"nodes": [{"key": "echo", "topic": "raw/echo", "payload": [1]}]}
    )
    async with asyncio.timeout(30):
        while (node := await asyncio.to_thread(media.app.client.dag(dag.id).node, "echo")).state != "succeeded":
            await asyncio.sleep(0.05)
    assert node.output == [1]
