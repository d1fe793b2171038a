"""Which line of the workflow's own code asked, waits or raised, through whatever machinery lies between."""

import asyncio
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headgate import _error_text
from headgate.workflow.commands import Place, line_of

_FRAMES_MAX: Final = 12
_HERE: Final = str(Path(__file__).parent)
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)


def where_waits(awaited: Any) -> str:
    """The innermost line of the workflow at which a coroutine is suspended."""
    place: Place = None
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        if not is_machinery(frame.f_code.co_filename):
            place = frame.f_code, frame.f_lineno
        awaited = awaited.cr_await
    return line_of(place)


def is_machinery(path: str) -> bool:
    return path.startswith((_HERE, _ASYNCIO))


def user_place() -> Place:
    """The line of the workflow's code that asked, through whatever of asyncio."""
    frame = inspect.currentframe()
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return None
        if not is_machinery(frame.f_code.co_filename):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def raised_at(error: BaseException) -> Place:
    place: Place = None
    for frame, line in traceback.walk_tb(_error_text.trace_of(error)):
        if not is_machinery(frame.f_code.co_filename):
            place = frame.f_code, line
    return place


def last_line(error: BaseException) -> str:
    return line_of(raised_at(error))


def text_of(error: BaseException) -> str:
    """A traceback of the workflow's own lines."""
    trace = whole = _error_text.trace_of(error)
    while trace is not None and is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return _error_text.text_of(error, trace or whole)


def takes_input(function: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.kind in kinds for parameter in parameters) > 1 or any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    )
