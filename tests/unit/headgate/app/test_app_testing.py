"""`app.testing()`: functions, flows and schedules in memory, by a clock that leaps."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest
from pydantic import BaseModel

from headgate import App, Flow, HeadgateError, Job, JobSkipped, JobTimedOut, Retry, Throttled

app = App("testing")
reports: list[datetime] = []


class Ring(BaseModel):
    inner: "Ring | None" = None


@app.job(max_attempts=3, backoff={"base_s": 60})
async def flaky(job: Job) -> int:
    if job.attempt < 3:
        raise OSError("not yet")
    return job.attempt


@app.job
async def resize(src: str, width: int = 640) -> str:
    await asyncio.sleep(3600)
    return f"{src}@{width}"


@app.job
def stitch(thumbs: list[str], title: str) -> str:
    return f"{title}: {', '.join(thumbs)}"


@app.job
def pages(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


@app.job(timeout_s=60)
async def slow() -> None:
    await asyncio.sleep(100)


@app.job
def outer(src: str) -> str:
    return resize.enqueue(src).result() + "!"


@app.job
async def aouter(src: str) -> str:
    return await (await resize.enqueue(src)).aresult() + "?"


@app.job
def boom() -> None:
    raise ValueError("bad")


@app.job(slots=100)
async def plain(what: str) -> str:
    return what


done: list[str] = []


@app.job
def keep(what: str) -> str:
    done.append(what)
    return what


@keep.undo
def unkeep(result: str) -> None:
    done.remove(result)


@app.job(batch=10)
def total(numbers: list[int]) -> list[int]:
    return [len(numbers)] * len(numbers)


@app.every("nightly", cron="0 3 * * *", tz="Europe/Paris", overlap="skip")
def report(at: datetime) -> None:
    reports.append(at)


@app.job
async def crawl(job: Job, depth: int) -> int:
    if depth:
        await job.add(crawl.call(depth - 1))
        await job.add(crawl.call(depth - 1))
    return depth


def test_results_delays_and_attempts_take_no_time() -> None:
    began = time.monotonic()
    with app.testing() as tests:
        start = tests.now
        job = resize.enqueue("a", delay_s=3600)
        assert (job.status(), tests.now) == ("delayed", start)
        assert job.result(timeout_s=8000) == "a@640"
        assert tests.now - start == timedelta(hours=2)
        assert flaky.enqueue().result() == 3
        assert tests.now - start == timedelta(hours=2, seconds=180)
        with pytest.raises(TimeoutError):
            resize.enqueue("b").result(timeout_s=1)
        with pytest.raises(JobTimedOut):
            slow.enqueue().result()
        with pytest.raises(ValueError, match="bad"):
            boom.enqueue().result()
        assert [job.topic for job in tests.ran].count("job/flaky") == 3
    assert time.monotonic() - began < 60


def test_a_result_is_waited_for_as_long_as_the_clock_of_the_test_says() -> None:
    with app.testing() as tests:
        start = tests.now
        with pytest.raises(TimeoutError):
            resize.enqueue("a", delay_s=7200).result(timeout_s=100)
        assert tests.now - start == timedelta(seconds=100)


def test_a_function_that_gives_nothing_is_not_asked_for_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    other = App("nothing")

    @other.job
    def nothing(fails: bool) -> None:
        if fails:
            raise ValueError("bad")

    with other.testing():
        with pytest.raises(ValueError, match="bad"):
            nothing.enqueue(True).result()
        monkeypatch.setattr("headgate._app.handle.JobHandle._look", None)
        nothing.enqueue(False).result()


def test_a_result_that_nests_too_deep_fails_its_job_once_and_in_words() -> None:
    """As deep as can be written and not be read again."""
    called = []

    @app.job(name="nests", max_attempts=5)
    def nests() -> Ring:
        called.append(1)
        return reduce(lambda inner, _: Ring(inner=inner), range(220), Ring())

    with app.testing(), pytest.raises(TypeError, match="nests returned what it is not annotated with: recursion"):
        nests.enqueue().result()
    assert called == [1]


def test_a_result_comes_with_the_end_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a send and a wait, and no call more; so does what it raised."""
    with app.testing():
        monkeypatch.setattr("headgate._app.handle.Sent._node_of", None)
        assert resize.enqueue("a").result() == "a@640"
        flow = app.flow("one")
        call = flow.add(resize.call("b"))
        assert flow.start().result(call) == "b@640"


def test_functions_may_wait_for_others_in_threads_and_coroutines() -> None:
    with app.testing():
        assert outer.enqueue("a").result() == "a@640!"
        assert aouter.enqueue("a").result() == "a@640?"


def test_a_list_of_thousands_of_calls_fits_an_output() -> None:
    with app.testing():
        flow = app.flow("wide")
        mapped = flow.map(plain, pages.call(2000))
        last = flow.add(stitch.call(mapped, title="all"))
        run = flow.start()
        assert run.result(mapped) == [f"p{number}" for number in range(2000)]
        assert run.result(last).endswith("p1998, p1999")
        node = app.client.dag(run.id).node(flow.key_of(mapped))
        assert len(str(node.output)) < 200


def test_time_stands_still_while_a_thread_works() -> None:
    """Else the hour of one job's sleep would pass before the other's thread has done its moment's work."""
    other = App("threads")
    ends: list[str] = []

    @other.job
    def work() -> None:
        time.sleep(0.05)
        ends.append("thread")

    @other.job
    async def sleep() -> None:
        await asyncio.sleep(3600)
        ends.append("sleep")

    with other.testing() as tests:
        jobs = [sleep.enqueue(), work.enqueue()]
        tests.run()
        assert [job.status() for job in jobs] == ["succeeded", "succeeded"]
    assert ends == ["thread", "sleep"]


async def test_coroutines_are_served_too() -> None:
    with app.testing():
        job = await resize.enqueue("a")
        assert await job.aresult() == "a@640"


def test_flows_run_whole() -> None:
    with app.testing() as tests:
        flow = app.flow("album")
        thumbs = [resize.call(src) for src in ("a", "b")]
        album = flow.add(stitch.call(thumbs, title="t"))
        mapped = flow.map(resize, pages.call(2), width=1)
        no = flow.add(stitch.call(mapped, title="no"), when=thumbs[0].value == "other")
        inner = app.flow("inner")
        inner.add(stitch.call(inner.map(resize, ["x"]), title="in"))
        inside = flow.add(inner)
        run = flow.start()
        assert run.result(album) == "t: a@640, b@640"
        assert run.result(mapped) == ["p0@1", "p1@1"]
        assert run.result(inside) == "in: x@640"
        with pytest.raises(JobSkipped):
            run.result(no)
        assert run.status() == "succeeded"
        assert crawl.enqueue(3).wait()
        tests.run()
        assert [job.topic for job in tests.ran].count("job/crawl") == 15


def test_what_failed_is_undone_and_runs_again() -> None:
    with app.testing():
        flow = app.flow("undone")
        kept = flow.add(keep.call("x"))
        flow.add(boom.call(), after=[kept])
        run = flow.start()
        assert run.wait()
        assert (run.status(), done) == ("failed", [])
        run.retry()
        assert run.wait()
        run = app.flow("cancelled")
        late = run.add(keep.options(delay_s=60).call("y"))
        started = run.start()
        started.cancel("no")
        assert started.job(late).status() == "cancelled"


def test_schedules_run_as_the_clock_goes_on() -> None:
    reports.clear()
    with app.testing(start=datetime(2030, 3, 30, tzinfo=UTC)) as tests:
        tests.advance(hours=72)
        assert reports == [
            datetime(2030, 3, 30, 2, tzinfo=UTC),
            datetime(2030, 3, 31, 1, tzinfo=UTC),
            datetime(2030, 4, 1, 1, tzinfo=UTC),
        ]
        tests.trigger("nightly")
        tests.run()
        assert len(reports) == 4


def test_a_schedule_gives_nothing_but_the_time() -> None:
    other = App("wrong")
    with pytest.raises(ValueError, match="`name` needs a default"):

        @other.every("hourly", cron="@hourly")
        def named(name: str) -> str:
            return name

    @other.every("daily", cron="@daily")
    def early(what: "Later") -> None: ...  # type: ignore[name-defined]  # noqa: F821 (of later)

    globals()["Later"] = str
    with pytest.raises(ValueError, match="`what` needs a default"), other.testing():
        pass
    del globals()["Later"]


def test_a_schedule_whose_function_returns_a_flow_runs_it() -> None:
    other, ran = App("flows-by-the-clock"), list[str]()

    @other.job
    def read(text: str) -> str:
        ran.append(text)
        return text

    @other.every("hourly", cron="@hourly", catchup_s=600, jitter_s=30)
    def both() -> Flow:
        flow = other.flow("two")
        flow.chain(read.call("a"), read)
        return flow

    with other.testing() as tests:
        tests.advance(hours=2)
        assert ran == ["a", "a", "a", "a"]
        assert both.enqueue().result() == "a"
    told = other.schedules["hourly"].options()
    assert (told["catchup_s"], told["jitter_s"]) == (600, 30)


def test_batches_keys_and_bare_items() -> None:
    with app.testing() as tests:
        jobs = [total.enqueue(number) for number in range(4)]
        assert [job.result() for job in jobs] == [4, 4, 4, 4]
        assert keep.enqueue("k", key="1").id == keep.enqueue("k", key="1").id
        bare = keep.options(result=False).enqueue("bare")
        tests.run()
        assert bare.kept is False and "bare" in done


def test_moments_and_windows_go_by_the_clock_of_the_test() -> None:
    with app.testing() as tests:
        late = keep.enqueue("late", at=tests.now + timedelta(hours=1))
        tests.advance(hours=1)
        assert late.status() == "succeeded"
        tests.advance(minutes=20)  # so that the hour goes on into the next window
        first = keep.enqueue("once", unique_for_s=3600)
        for minutes in (30, 29):
            tests.advance(minutes=minutes)
            assert keep.enqueue("once", unique_for_s=3600).id == first.id
        tests.advance(minutes=2)
        assert keep.enqueue("once", unique_for_s=3600).id != first.id
        with pytest.raises(ValueError, match="has no time zone"):
            keep.enqueue("x", at=datetime(2030, 1, 1))  # noqa: DTZ001
    done.clear()


def test_jobs_of_a_flow_share_values() -> None:
    other = App("shared")

    @other.job
    async def count(job: Job, by: int) -> int:
        found: int = await job.values.update("count", lambda value: (value or 0) + by)
        return found

    with other.testing():
        flow = other.flow("counting")
        calls = [flow.add(count.call(by)) for by in (1, 2, 3)]
        run = flow.start()
        assert max(run.result(call) for call in calls) == 6
        assert [value.value for value in other.client.dag(run.id).values.all()] == [6]


def test_a_function_reads_what_came_with_an_event() -> None:
    other = App("other")

    @other.job
    def publish(job: Job, version: str) -> str:
        return f"{version}, by {job.inputs['external:approval']['by']}"

    with other.testing():
        flow = other.flow("release")
        call = flow.add(publish.call("v1"), key="publish", external=["approval"])
        run = flow.start()
        other.client.dag(run.id).resolve("publish", "approval", data={"by": "ada"})
        assert run.result(call) == "v1, by ada"


def test_what_nobody_ends_says_so() -> None:
    with app.testing():
        flow = app.flow("waits")
        waits = flow.add(keep.call("z"), external=["approval"])
        with pytest.raises(HeadgateError, match="nothing is left that could end this: keep-1"):
            flow.start().result(waits)


def test_retry_is_as_in_a_worker() -> None:
    other = App("other")
    seen: list[int] = []

    @other.job
    def once_more(job: Job) -> str:
        seen.append(job.attempt)
        if len(seen) == 1:
            raise Retry(delay_s=5, costs_attempt=False)
        return "done"

    with other.testing():
        assert once_more.enqueue().result() == "done"
    assert seen == [1, 1]


@pytest.mark.parametrize("batch", [None, 1])
def test_throttled_holds_back_all_calls_of_the_function(batch: int | None) -> None:
    other = App("other")
    begun: list[tuple[float, int]] = []

    @other.job(batch=batch, slots=1)
    def limited(names: list[str], job: Job) -> list[str] | None:
        begun.append((clock.now.timestamp(), job.attempt))
        if len(begun) == 1:
            raise Throttled(60)
        return names if batch else None

    with other.testing() as clock:
        for _ in range(3):
            limited.enqueue(["a"])
        clock.run()
    start_s = begun[0][0]
    assert [(at_s - start_s, attempt) for at_s, attempt in begun] == [(0, 1), (60, 1), (60, 1), (60, 1)]


def test_a_call_of_a_batch_is_cancelled_once_all_of_its_jobs_are() -> None:
    other = App("other")
    ended: list[str] = []

    @other.job(batch=10)
    async def load(names: list[str]) -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")

    with other.testing() as clock:
        first, second = load.enqueue("a"), load.enqueue("b")
        clock.advance(seconds=1)
        first.cancel()
        clock.advance(seconds=1)
        assert ended == []
        second.cancel()
        clock.advance(seconds=1)
        assert ended == ["cancelled"]
        third, fourth = load.enqueue("c"), load.enqueue("d")
        clock.advance(seconds=1)
        third.cancel()
        assert fourth.result() is None
    assert ended == ["cancelled", "done"]


@pytest.mark.parametrize("result", [True, False])
def test_of_equal_jobs_that_are_unique_one_is_at_work(result: bool) -> None:
    other = App("other")
    ran: list[int] = []

    @other.job(unique=True, result=result)
    async def sync(account: int) -> None:
        await asyncio.sleep(5)
        ran.append(account)

    with other.testing() as clock:
        first, again, third = sync.enqueue(1), sync.enqueue(1), sync.enqueue(2)
        assert (first.id == again.id, first.id == third.id) == (True, False)
        clock.run()
        later = sync.enqueue(1)
        assert later.id != first.id
        clock.run()
        named = sync.options(key="k").enqueue(3)
        assert sync.options(key="k").enqueue(3).id == named.id
        clock.run()
        assert sync.options(unique=False).enqueue(1).id != sync.options(unique=False).enqueue(1).id
        clock.run()
    assert ran == [1, 2, 1, 3, 1, 1]


@pytest.mark.parametrize("result", [True, False])
def test_what_jobs_log_is_kept(result: bool) -> None:
    other = App("other")
    logger = logging.getLogger("its.own")

    @other.job(max_attempts=2, backoff={"base_s": 5}, result=result)
    def load(job: Job, row: int) -> None:
        job.log.info("attempt %d", job.attempt)
        logger.warning("row %d is odd", row)
        if job.attempt == 1:
            raise ValueError("once")

    with other.testing() as clock:
        start = clock.now
        first, second = load.enqueue(7), load.enqueue(9)
        clock.run()
        logs = first.logs()
        assert second.logs()[1].text == "row 9 is odd"
        logger.warning("of no job")
    assert [(line.level, line.text.partition("\n")[0], line.attempt) for line in logs if "row 7" in line.text] == [
        ("warning", "row 7 is odd", 1),
        ("warning", "row 7 is odd", 2),
    ]
    assert [line.text for line in logs if line.logger == "headgate.job"] == ["attempt 1", "attempt 2"]
    assert "ValueError: once" in next(line.text for line in logs if line.logger == "headgate._worker")
    assert [(line.at - start).total_seconds() for line in logs if "row" in line.text] == [0, 5]
