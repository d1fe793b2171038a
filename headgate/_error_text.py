"""What is said of an error, whatever stands in it.

It is some program's code, whose text or name may raise in its turn, also a panic or `sys.exit`. For wherever code
of a user ends: handlers, steps, updates, runs.
"""

import traceback
from types import TracebackType
from typing import Final, TypeGuard, TypeVar

E = TypeVar("E", bound=BaseException)

ERROR_CHARS_MAX: Final = 4_000


def text_of(error: BaseException, trace: TracebackType | None) -> str:
    """It as Python prints it, with this traceback; the end of that, where it is long."""
    try:
        return clean("".join(traceback.format_exception(type(error), error, trace)))
    except BaseException as failure:
        return clean(f"{name_of(error)}, of which no more can be told: {name_of(failure)}")


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback, which it may not be asked for in the ordinary way."""
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return trace


def is_of(value: object, *kinds: type[E]) -> TypeGuard[E]:
    """Whether it is an error of one of these classes. `isinstance` asks the value itself, too, which may raise."""
    return issubclass(type(value), kinds)


def name_of(value: object) -> str:
    """The name of its class, which a metaclass may hide."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def said_by(error: BaseException) -> str:
    """What it says of itself, or its class where it says nothing."""
    try:
        return clean(str(error)) or name_of(error)
    except BaseException as failure:
        return clean(f"{name_of(error)}, of which no more can be told: {name_of(failure)}")


def clean(text: str) -> str:
    """The end of an error's text, in characters that may be stored."""
    return text[-ERROR_CHARS_MAX:].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
