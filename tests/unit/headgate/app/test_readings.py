"""What somebody may write who knows the names only: it works, or the error says what to write."""

import contextlib
import re
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headgate import App, Conflict, Job


class Pool: ...


app = App("readings")


@app.job
def add(a: int, b: int = 1) -> int:
    return a + b


@app.job
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.job
def boom() -> None:
    raise ValueError("no")


@app.job
def pooled(a: int, pool: Pool) -> int:
    return a


@app.job
def logging_job(job: Job) -> None:
    job.log("%s of %s", 1, 2)


def test_a_job_logs_by_calling_its_log() -> None:
    with app.testing():
        job = logging_job.enqueue()
        job.result()
        assert [(line.level, line.text) for line in job.logs()] == [("info", "1 of 2")]


def test_a_traceback_begins_in_the_function() -> None:
    with app.testing(), pytest.raises(ValueError) as caught:
        boom.enqueue().result()
    cause = "".join(traceback.format_exception_only(caught.value.__cause__))
    files = re.findall(r'File "(.*?)", line \d+, in (\w+)', cause)
    assert files == [(__file__, "boom")]


def test_one_key_is_one_job_within_the_time_that_is_said() -> None:
    with app.testing() as tests:
        first = add.enqueue(1, key="a", unique_for_s=60)
        assert add.enqueue(2, key="a", unique_for_s=60).id == first.id
        assert add.enqueue(1, key="b", unique_for_s=60).id != first.id
        tests.advance(timedelta(minutes=2))
        later = add.enqueue(3, key="a", unique_for_s=60)
        assert (later.id == first.id, later.result()) == (False, 4)
        add.enqueue(1, key="plain")
        with pytest.raises(Conflict, match=re.escape("options(fairness_key=)")):
            add.enqueue(2, key="plain")
        with pytest.raises(ValueError, match="not both"):
            add.options(unique=True, unique_for_s=60).enqueue(1)


async def test_a_test_in_a_coroutine_may_await_the_app() -> None:
    async with app.testing() as tests:
        job = await add.enqueue(1, delay_s=3600)
        assert await job.aresult() == 2
        tests.advance(timedelta(seconds=1), hours=1)


@contextlib.contextmanager
def blocking(_: App) -> Iterator[Pool]:
    yield Pool()


def blocking_generator() -> Iterator[Pool]:
    yield Pool()


@contextlib.asynccontextmanager
async def coroutine(_: App) -> AsyncIterator[Pool]:
    yield Pool()


@pytest.mark.parametrize("lifespan", [blocking, blocking_generator, coroutine])
def test_a_lifespan_is_any_context_manager(lifespan: Callable[..., Any]) -> None:
    other = App("lifespans", lifespan=lifespan)
    shared = other.state(Pool)

    @other.job
    def kind(pool: Pool = shared) -> str:
        return type(pool).__name__

    with other.testing():
        assert kind.enqueue().result() == "Pool"


def test_a_lifespan_that_is_none_says_what_one_is() -> None:
    other = App("lifespans", lifespan=Pool)
    with pytest.raises(TypeError, match="an async generator function that yields once"), other.testing():
        pass


def test_what_is_put_into_the_state_of_an_app_says_what_to_do() -> None:
    other = App("lifespans")
    with pytest.raises(AttributeError, match=r"(?s)'pool'.*@app\.lifespan.*yield pool.*pool: Pool = app\.state"):
        other.state.pool = Pool()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"`pool: Pool = app\.state\(Pool\)`"):
        _ = other.state.pool


def test_a_function_that_asks_for_what_no_lifespan_makes_says_so() -> None:
    other = App("lifespans")
    shared = other.state(Pool)

    @other.job
    def kind(pool: Pool = shared) -> str:
        return type(pool).__name__

    why = r"(?s)asks for a Pool, and the app has no lifespan.*@app\.lifespan"
    with pytest.raises(RuntimeError, match=why), other.testing():
        pass


def _nested() -> Any:
    inner = app.flow("inner")
    inner.add(add.call(1))
    return add.call(inner)


@pytest.mark.parametrize(
    ("writing", "said"),
    [
        (lambda: add.call(1) > 3, "compare its `.value`, when=call.value > 0.5"),
        (lambda: add.call(1)["score"], "compare its `.value`"),
        (lambda: add.call(1, when=add.call(2)), "`when` is for the flow: flow.add(add.call(...), when=...)"),
        (lambda: add.call(1, required=False), "`required` is for the flow"),
        (lambda: app.flow("f").chord(total, [add.call(1)]), "flow.chord([resize.call(src) for src in sources]"),  # type: ignore[arg-type]
        (lambda: app.flow("f").chain(add, add), "flow.chain(fetch.call(url), clean, store)"),  # type: ignore[arg-type]
        (lambda: app.flow("f").chain(add.call(1), add.call(2)), "flow.chain(fetch.call(url), clean, store)"),  # type: ignore[arg-type]
        (lambda: app.flow("f").map([1, 2], add), "flow.map(resize, listing.call())"),  # type: ignore[arg-type]
        (_nested, "`a` is <flow inner of 1 nodes>: add it to the flow around it"),
        (lambda: app.job("01a2"), "the job with an id is app.handle('01a2')"),  # type: ignore[arg-type]
        (lambda: pooled.enqueue(1), "to parameters whose default is app.state(TheType)"),  # type: ignore[call-arg]
        (lambda: app.every("e", cron="@daily", jitter_s=-1), "jitter_s of schedule 'e' is from 0 to 86,400"),
    ],
)
def test_what_is_written_otherwise_is_told_how(writing: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        writing()
