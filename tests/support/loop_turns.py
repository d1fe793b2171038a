"""How much Python an event loop goes through at a time: lines of code between two of its turns, never time."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest


class Turns:
    """The lines that this thread's loop went through in its longest turn; each round of a loop or a comprehension
    is one. What other threads do is not counted."""

    def __init__(self) -> None:
        self.lines_max = 0
        self._lines = 0

    def begin(self) -> None:
        self._lines = 0

    def trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self._lines += 1
            self.lines_max = max(self.lines_max, self._lines)
        return self.trace


@contextmanager
def loop_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count what the running loop does from now on."""
    turns, run = Turns(), asyncio.Handle._run
    before = sys.gettrace()

    def counted(handle: asyncio.Handle) -> None:
        turns.begin()
        run(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", counted)
        sys.settrace(turns.trace)
        try:
            yield turns
        finally:
            sys.settrace(before)
