"""How a function's exception comes to whoever asks for the result: as an item's error, and back.

The error's text is one line of JSON, which says what is raised again, and the traceback as Python prints it.
"""

import builtins
import contextlib
import json
import sys
import traceback
from typing import Any, Final

from headgate._job import ERROR_CHARS_MAX, traced
from headgate.errors import HeadgateError

_RECORD_CHARS_MAX: Final = 1_500


class JobError(HeadgateError):
    """Base of what a job's result may raise besides what its function raised."""

    code = "job_error"


class JobFailed(JobError):
    """The job failed with an exception that cannot be raised here, or without one; `error` is its whole text."""

    code = "job_failed"

    def __init__(self, detail: str, *, error: str | None = None, **more: Any) -> None:
        super().__init__(detail, **more)
        self.error = error


class JobCancelled(JobError):
    code = "job_cancelled"


class JobSkipped(JobError):
    """The job did not run: its condition was not met, or what it waits for did not succeed."""

    code = "job_skipped"


class JobTimedOut(JobError, TimeoutError):
    """An attempt took longer than the `timeout_s` of its function."""

    code = "job_timed_out"


class NotDone(JobError, TimeoutError):
    """The job has not ended within the time that `result` was to wait; it goes on."""

    code = "not_done"


class ResultGone(JobError):
    """There is no such job, or its result is no longer kept."""

    code = "result_gone"


class NoResult(JobError):
    """The job was sent without keeping its result (`result=False`)."""

    code = "no_result"


class RemoteTraceback(Exception):
    """The traceback of an exception where it was raised; its `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


def text_of(error: BaseException) -> str:
    """An exception as an item's error."""
    kind = type(error)
    record: dict[str, Any] = {"type": f"{kind.__module__}:{kind.__qualname__}", "args": _jsonable(error.args)}
    if state := {name: value for name, value in vars(error).items() if _fits(value)}:
        record["state"] = state
    line = json.dumps(record)
    if len(line) > _RECORD_CHARS_MAX:
        line = json.dumps({"type": record["type"], "args": [str(error)[: _RECORD_CHARS_MAX // 2]]})
    trace = "".join(traceback.format_exception(*traced(error)))
    return f"{line}\n{trace[-(ERROR_CHARS_MAX - len(line) - 1) :]}"


def _jsonable(values: tuple[Any, ...]) -> list[Any]:
    return [value if _fits(value) else str(value) for value in values]


def _fits(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def raised_by(text: str | None, where: str) -> BaseException:
    """The exception that an error stands for: of its own class where that is known here, else a JobFailed.

    Classes are looked up in modules that are imported already; nothing is imported, and nothing unpickled.
    """
    head, _, trace = (text or "").partition("\n")
    try:
        record = json.loads(head)
        name, args = record["type"], record["args"]
    except (ValueError, TypeError, KeyError):
        return JobFailed(f"{where} failed: {text or 'nobody said why'}", error=text)
    error = _made(str(name), args, record.get("state") or {})
    if error is None:
        last = trace.strip().rsplit("\n", 1)[-1] or name
        error = JobFailed(f"{where} failed: {last}", error=trace)
    error.__cause__ = RemoteTraceback(trace or head)
    error.add_note(f"raised in {where}")
    return error


def _made(name: str, args: list[Any], state: dict[str, Any]) -> BaseException | None:
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    error: BaseException
    try:
        error = found(*args)
    except Exception:
        try:
            error = found.__new__(found)
            error.args = tuple(args)
        except Exception:
            return None
    for key, value in state.items():
        with contextlib.suppress(Exception):
            setattr(error, key, value)
    return error
