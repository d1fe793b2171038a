"""How a function's exception comes to whoever asks for the result: as an item's error, and back.

The error's text is one line of JSON, which says what is raised again, and the traceback as Python prints it.
"""

import builtins
import contextlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headgate._error_text import ERROR_CHARS_MAX, is_of, name_of
from headgate._error_text import text_of as traceback_of
from headgate._worker.verdicts import trace_of
from headgate.errors import Fail, JobFailed, RemoteTraceback, Retry

_RECORD_CHARS_MAX: Final = 1_500
_SAID_CHARS_MAX: Final = 500
_PARTS_MAX: Final = 20  # of a group


class Raised(Retry):
    """What another error than `Retry` or `Fail` is told as; its job is tried again if it has the attempts."""


def ended_by(error: BaseException, *, tries: bool) -> Retry | Fail:
    """How a job ends by what its function, or other code of the user's, has raised."""
    text = text_of(error)
    return Raised(text) if tries and not is_of(error, Fail) else Fail(text)


def text_of(error: BaseException) -> str:
    """An exception as an item's error."""
    try:
        record = _record(error)
    except BaseException:  # of a class of the user's: what it is made of may not be asked for
        record = {"type": f":{name_of(error)}", "args": [_said(error)]}
    line = json.dumps(record)
    if len(line) > _RECORD_CHARS_MAX:
        line = json.dumps({"type": record["type"], "args": [_said(error)[: _RECORD_CHARS_MAX // 2]]})
    trace = traceback_of(error, trace_of(error))
    return f"{line}\n{trace[-(ERROR_CHARS_MAX - len(line) - 1) :]}"


def _record(error: BaseException) -> dict[str, Any]:
    kind, said = type(error), _said(error)
    record: dict[str, Any] = {"type": f"{kind.__module__}:{kind.__qualname__}", "args": _jsonable(_args(error))}
    if record["args"] != [said]:
        record["said"] = said[:_SAID_CHARS_MAX]
    if isinstance(error, ExceptionGroup) and len(error.exceptions) <= _PARTS_MAX:  # of a TaskGroup, mostly
        record["parts"] = [_record(part) for part in error.exceptions]
    if state := {name: value for name, value in vars(error).items() if _fits(value)}:
        record["state"] = state
    return record


def _said(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # of a class of the user's, which must not hide what happened
        return "<no text: its __str__ raises>"


def _args(error: BaseException) -> tuple[Any, ...]:
    """What it is made of: an OSError keeps its file apart from its `args`."""
    if isinstance(error, ExceptionGroup):
        return (error.message,)
    if isinstance(error, OSError):
        made: Any = OSError.__reduce__(error)
        return tuple(made[1])
    return error.args


def _jsonable(values: tuple[Any, ...]) -> list[Any]:
    return [value if _fits(value) else _said(value) for value in values]


def _fits(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except BaseException:  # of its class's own making, too
        return False


def raised_by(text: str | None, where: str) -> BaseException:
    """The exception that an error stands for: of its own class where that is known here, else a JobFailed.

    Classes are looked up in modules that are imported already; nothing is imported, and nothing unpickled.
    """
    head, _, trace = (text or "").partition("\n")
    try:
        record = json.loads(head)
        error = _raised(record, where, trace)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return JobFailed(f"{where} failed: {text or 'nobody said why'}", error=text)
    error.__cause__ = RemoteTraceback(trace or head)
    error.add_note(f"raised in {where}")
    return error


def _raised(record: dict[str, Any], where: str, trace: str) -> BaseException:
    name, args = str(record["type"]), list(record["args"])
    said = str(record["said"] if "said" in record else "".join(map(str, args)))
    if parts := record.get("parts"):
        args.append([_raised(part, where, "") for part in parts])
    error = _made(name, args, record.get("state") or {}, said)
    if error is None:
        kind = name.rpartition(":")[2]
        error = JobFailed(f"{where} failed: {kind}{': ' if said else ''}{said}", error=trace)
    return error


def _module(name: str) -> ModuleType | None:
    """A module that is imported here, also as the program that runs: `python media.py` is the worker's `media`."""
    program = sys.modules.get("__main__")
    file, spec = getattr(program, "__file__", None), getattr(program, "__spec__", None)
    is_program = name == (spec.name if spec is not None else file is not None and Path(file).stem)
    return program if is_program else sys.modules.get(name)


def _made(name: str, args: list[Any], state: dict[str, Any], said: str) -> BaseException | None:
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else _module(module)
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
            if said and not str(error):  # what it says is not in its `args`
                return None
        except Exception:
            return None
    for key, value in state.items():
        with contextlib.suppress(Exception):
            setattr(error, key, value)
    return error
