"""What goes through an app unharmed: values of all types, what functions raise, and flows that cannot be."""

import asyncio
import dataclasses
import functools
import importlib.machinery
import json
import math
import re
import sys
import threading
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import App, Invalid, JobFailed, JobTimedOut, Retry, WrongArguments
from headgate._app.failures import raised_by, text_of

# No text, text, and text that is base64 of something else.
BINARY = (b"\xff\x00\xfe", b"", b"text", b"abcd")

app = App("values")
runs: list[str] = []


@dataclasses.dataclass
class Page:
    body: bytes
    score: float = 0.0


@app.job
def whole(
    body: bytes, parts: list[bytes], page: Page, other: bytes | None = None
) -> tuple[bytes, list[bytes], Page]:
    return body, parts, page


@app.job
def number(value: float, other: float | None = None) -> float:
    return value


@app.job
def add(x: int, y: int = 1) -> int:
    return x + y


@app.job
def total(numbers: list[Any]) -> int:
    return sum(numbers)


@app.job
async def waits_for_what_was_cancelled() -> None:
    runs.append("async")
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


@app.job
def raises_cancelled() -> None:
    runs.append("thread")
    raise asyncio.CancelledError


@app.job
def raises(what: str) -> None:
    match what:
        case "group":
            raise ExceptionGroup("two of them", [ValueError(1), KeyError("k")])
        case "file":
            Path("/there/is/none").read_bytes()
        case "bytes":
            b"\xff".decode()
        case "lines":
            error = Unusual(1, lock=threading.Lock())
            error.add_note("a note")
            raise error
        case "mute":
            raise Mute


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Unusual(Exception):
    def __new__(cls, *_: Any, lock: Any) -> "Unusual":
        return super().__new__(cls)

    def __init__(self, code: int, *, lock: Any) -> None:
        super().__init__("first line\nsecond line")
        self.code, self.lock = code, lock


@pytest.mark.parametrize("body", BINARY)
def test_bytes_come_as_they_were_given(body: bytes) -> None:
    with app.testing():
        given = body, [body, b"\xfb"], Page(body)
        assert whole.enqueue(*given, other=body).result() == given


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_has_not_come_as_they_were_given(value: float) -> None:
    with app.testing():
        assert repr(number.enqueue(value, value).result()) == repr(value)


def test_a_wrong_argument_is_named_without_how_it_is_checked() -> None:
    with pytest.raises(WrongArguments, match=r"^total: `numbers` input should be a valid list"):
        total.call(3)


@app.job
async def stops() -> None:
    runs.append("stops")
    raise KeyboardInterrupt


def test_an_interrupt_of_its_own_ends_a_job() -> None:
    with app.testing() as tests, pytest.raises(JobFailed, match="KeyboardInterrupt"):
        stops.enqueue().result(timeout_s=60)
    assert len(tests.ran) == 1


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"delay_s": -1}, Invalid, "/nodes/0/delay_s: must be greater than or equal to 0"),
        ({"delay_s": "5"}, Invalid, "/nodes/0/delay_s: must be a valid number"),
        ({"delay_s": 40 * 86_400}, Invalid, "/nodes/0/delay_s"),
        ({"priority": "high"}, Invalid, "/nodes/0/priority"),
        ({"key": "k" * 2_000}, Invalid, "/key: must be 1 to 1024 bytes"),
        ({"backoff": {"base": 1}}, Invalid, "/nodes/0/backoff/base: there is no such field"),
        ({"priority": "high", "result": False}, Invalid, "/items/0/priority"),
        ({"at": "tomorrow"}, TypeError, "at='tomorrow' is no datetime"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1}, ValueError, "`delay_s` or `at`, not both"),
        ({"unique_for_s": "5"}, ValueError, "unique_for_s must be a number of seconds"),
    ],
)
def test_options_that_the_services_refuse_are_refused_in_memory_too(
    options: Any, kind: type[Exception], said: str
) -> None:
    with app.testing(), pytest.raises(kind, match=said):
        add.options(**options).enqueue(1)


@app.job(batch=2)
async def cancels_its_batch(numbers: list[int]) -> list[int]:
    runs.append(1)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return numbers


def test_a_batch_that_cancels_itself_fails_its_jobs() -> None:
    """They were tried again, twenty times, as if their worker had stopped."""
    runs.clear()
    with app.testing(), pytest.raises(JobFailed, match="CancelledError"):
        cancels_its_batch.enqueue([1]).result(timeout_s=60)
    assert len(runs) == 1


async def fails_in_a_group() -> None:
    """It fails as the group is left, which, up to Python 3.12, leaves its task marked as if it were cancelled."""

    async def bad() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("of a group")

    async with asyncio.TaskGroup() as group:
        group.create_task(bad())


@app.job
async def of_a_group() -> None:
    runs.append(1)
    await fails_in_a_group()


@app.job
async def behind_a_group() -> None:
    runs.append(1)
    with pytest.raises(ExceptionGroup):
        await fails_in_a_group()
    raise KeyError("later")


@app.job(batch=2)
async def a_batch_of_a_group(_: list[int]) -> None:
    runs.append(1)
    with pytest.raises(ExceptionGroup):
        await fails_in_a_group()
    sys.exit("of a batch")


@app.job(timeout_s=5)
async def late_behind_a_group() -> None:
    runs.append(1)
    with pytest.raises(ExceptionGroup):
        await fails_in_a_group()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "said"),
    [
        (of_a_group, (), ExceptionGroup, "unhandled errors in a TaskGroup"),
        (behind_a_group, (), KeyError, "later"),
        (a_batch_of_a_group, ([1],), JobFailed, "SystemExit: of a batch"),
        (late_behind_a_group, (), JobTimedOut, "took longer than 5 s"),
    ],
)
def test_what_a_job_raises_ends_it_at_once_also_where_a_group_in_it_has_failed(
    function: Any, arguments: tuple[Any, ...], kind: type[Exception], said: str
) -> None:
    """It was tried again, twenty times, as if its worker had cancelled it."""
    runs.clear()
    with app.testing(), pytest.raises(kind, match=said):
        function.enqueue(*arguments).result(timeout_s=60)
    assert len(runs) == 1


class Busy(Retry):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


@app.job(batch=4)
async def busy_at_first(numbers: list[int]) -> list[int]:
    runs.append(1)
    if len(runs) < 3:
        raise Busy("later", delay_s=0)
    return numbers


def test_a_batch_that_asks_for_another_attempt_has_it_whatever_it_says() -> None:
    """Its jobs had no verdict, and kept their leases for ever, or no other attempt."""
    runs.clear()
    with app.testing():
        assert busy_at_first.enqueue([1, 2]).result(timeout_s=60) == [1, 2]
    assert len(runs) == 3


class Closed(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        sys.exit("as it is asked for")


class Elsewhere(Exception):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise KeyError("nowhere")


@app.job(batch=4)
async def one_of_them(numbers: list[int]) -> list[Any]:
    runs.append(len(numbers))
    return [KINDS[number](number) if number < len(KINDS) else number for number in numbers]


@app.job
async def one(number: int) -> None:
    runs.append(1)
    raise KINDS[number]


KINDS = (Closed, Elsewhere)


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_an_error_that_may_not_be_looked_at_ends_its_job_and_no_other(number: int) -> None:
    """It failed the others of its batch, or ended the worker; of one job it cost twenty attempts."""
    runs.clear()
    with app.testing() as tests:
        found = [one_of_them.enqueue(n) for n in (number, 7, 8)]
        tests.run()
        assert [job.result(timeout_s=60) for job in found[1:]] == [7, 8]
        with pytest.raises(JobFailed, match=KINDS[number].__name__):
            found[0].result(timeout_s=60)
        with pytest.raises(JobFailed, match=KINDS[number].__name__):
            one.enqueue(number).result(timeout_s=60)
    assert runs == [3, 1]


@pytest.mark.parametrize("function", [waits_for_what_was_cancelled, raises_cancelled])
def test_a_cancellation_of_its_own_ends_a_job_as_any_exception_does(function: Any) -> None:
    runs.clear()
    with app.testing() as tests, pytest.raises(JobFailed, match="CancelledError"):
        function.enqueue().result(timeout_s=60)
    assert len(tests.ran) == len(runs) == 1


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("group", ExceptionGroup, r"two of them \(2 sub-exceptions\)$"),
        ("file", FileNotFoundError, r"No such file or directory: '/there/is/none'$"),
        ("bytes", JobFailed, r"UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0"),
        ("lines", JobFailed, r"Unusual: first line\nsecond line$"),
    ],
)
def test_what_was_raised_is_told_whole(what: str, kind: type[Exception], said: str) -> None:
    with app.testing(), pytest.raises(kind) as caught:
        raises.enqueue(what).result()
    assert re.search(said, str(caught.value))


def test_what_cannot_even_be_printed_is_raised_all_the_same() -> None:
    with app.testing() as tests, pytest.raises(Mute):
        raises.enqueue("mute").result()
    assert len(tests.ran) == 1


def test_a_flow_that_waits_for_itself_is_refused_in_words() -> None:
    numbers: list[Any] = [1]
    ring = total.call(numbers)
    ring.arguments["numbers"] = [add.call(ring)]
    with pytest.raises(ValueError, match="<call of total> waits for itself"):
        app.flow("ring").add(ring)
    own = add.call(1)
    with pytest.raises(ValueError, match="<call of add> waits for itself"):
        app.flow("own").add(own, after=[own])
    with pytest.raises(ValueError, match="<call of add> waits for itself"):
        app.flow("when").add(own, when=own.value > 1)


def test_errors_are_of_public_modules() -> None:
    errors = [getattr(headgate, name) for name in headgate.__all__]
    shown = {
        f"{kind.__module__}.{kind.__name__}"
        for kind in errors
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert not {name for name in shown if "._" in name}


def test_a_schedule_that_is_not_there_is_named() -> None:
    with app.testing() as tests, pytest.raises(ValueError, match="no schedule 'daily'"):
        tests.trigger("daily")


@pytest.mark.parametrize("function", [lambda: None, lambda x, y=1: None, lambda *x: None])
def test_a_batch_that_takes_no_one_list_is_refused_at_the_caller_and_by_the_worker(function: Any) -> None:
    odd = App("odd")
    made = odd.job(name="odd", batch=3)(function)
    with odd.testing(), pytest.raises(TypeError, match="takes one list of elements"):
        made.enqueue(*([1] if function.__code__.co_varnames else []))
    with pytest.raises(TypeError, match="takes one list of elements"):
        made.signature.check()


class Called:
    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize("called", [Called(), functools.partial(pow, 2), Called, 5, None])
def test_what_is_called_but_is_no_function_is_refused_where_it_is_decorated(called: Any) -> None:
    with pytest.raises(TypeError, match=r"decorates a function, not .*: call that in one"):
        App("odd").job(name="odd")(called)
    with pytest.raises(TypeError, match="decorates a function, not"):
        App("odd").job(called)


@app.job(batch=5)
def judged(numbers: list[int]) -> list[int | ValueError]:
    return [number if number % 2 else ValueError(f"{number} is even") for number in numbers]


def test_a_batch_may_be_annotated_with_the_exceptions_that_it_returns() -> None:
    judged.signature.check()
    with app.testing():
        even, odd = judged.enqueue(2), judged.enqueue(3)
        assert odd.result() == 3
        with pytest.raises(ValueError, match="2 is even"):
            even.result()


@pytest.mark.parametrize("key", ["", 7])
def test_a_key_that_names_no_job_is_refused(key: Any) -> None:
    with app.testing() as tests:
        for kept in (True, False):
            with pytest.raises(ValueError, match="key must be a text that names the job"):
                add.options(key=key, result=kept).enqueue(1)
        assert not tests.run()


@pytest.mark.parametrize(
    "send", [lambda: add.enqueue(1, max_attempts=3), lambda: add.options().enqueue(1, max_attempts=3)]
)  # type: ignore[call-arg]
def test_an_option_given_as_an_argument_is_told_how(send: Any) -> None:
    with pytest.raises(
        WrongArguments, match=r"`max_attempts` is an option: add\.options\(max_attempts=\.\.\.\)\.enqueue"
    ):
        send()


class Declined(Exception):
    pass


def test_an_exception_of_the_program_that_runs_is_raised_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python media.py` is `__main__`, and the worker's module `media`."""
    program = types.ModuleType("__main__")
    program.__file__ = "/srv/media.py"
    program.Declined = Declined  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", program)
    text = json.dumps({"type": "media:Declined", "args": ["no funds"]})

    assert type(raised_by(text, "job")) is Declined
    program.__spec__ = importlib.machinery.ModuleSpec("shop.media", None)  # as by `python -m shop.media`
    assert type(raised_by(text, "job")) is JobFailed
    assert type(raised_by(text.replace("media", "shop.media"), "job")) is Declined


def numbers_one_by_one() -> Any:
    yield 1


async def numbers_as_they_come() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "settings", "said"),
    [
        (lambda: None, {"max_attempt": 3}, "@app.job has no option 'max_attempt'; there are name, version, "),
        (lambda: None, {"defaults": {}}, "@app.job has no option 'defaults'"),
        (lambda: None, {"backoff": {"base": 5}}, "backoff of odd has no 'base'; there are base_s, factor, "),
        (numbers_one_by_one, {}, "is a generator: a job returns its result"),
        (numbers_as_they_come, {}, "is a generator: a job returns its result"),
    ],
)
def test_a_definition_that_cannot_be_meant_is_refused(function: Any, settings: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        App("odd").job(name="odd", **settings)(function)


def test_a_group_is_raised_as_one_with_its_exceptions() -> None:
    class Here(Exception): ...

    told = ExceptionGroup(
        "g", [ValueError("v"), ExceptionGroup("h", [KeyError("k"), OSError(2, "no", "f")]), Here("x")]
    )
    group = raised_by(text_of(told), "job 'pay'")
    assert isinstance(group, ExceptionGroup) and group.message == "g"
    value, inner, here = group.exceptions
    assert repr(value) == "ValueError('v')" and isinstance(here, JobFailed) and "Here: x" in str(here)
    assert isinstance(inner, ExceptionGroup) and [type(part) for part in inner.exceptions] == [
        KeyError,
        FileNotFoundError,
    ]
    assert "Here" in str(group.__cause__), "the whole traceback"


@pytest.mark.parametrize("parts", [21, 9])
def test_a_group_that_is_too_large_to_be_told_is_told_as_text(parts: int) -> None:
    failed = raised_by(text_of(ExceptionGroup("g", [ValueError("v" * 200)] * parts)), "job 'pay'")
    assert isinstance(failed, JobFailed) and f"g ({parts} sub-exceptions)" in str(failed)


@pytest.mark.parametrize("parts", [3, ["x"], [{}], [{"type": "builtins:ValueError", "args": 3}]])
def test_a_group_that_another_has_written_is_told_as_it_is(parts: Any) -> None:
    text = json.dumps({"type": "builtins:ExceptionGroup", "args": ["g"], "parts": parts})
    assert isinstance(raised_by(text, "job 'pay'"), JobFailed)
