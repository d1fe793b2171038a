"""Trace and profile functions that programs leave in their threads."""

from collections.abc import Callable
from typing import Any


def raising_after(calls: int) -> Callable[..., Any]:
    """A trace or profile function with a limit, as of a sandbox."""
    left = calls

    def trace(*_: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ZeroDivisionError("of a trace function")
        return trace

    return trace
