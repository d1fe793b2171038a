"""The one place that reads a clock. Business time is always the shard's own (`shard_now()` in SQL)."""

from __future__ import annotations

import time
import types
from collections.abc import Generator
from typing import Protocol


class Clock(Protocol):
    """What a process may know of time: a monotonic clock for timeouts and a wall clock for logs."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch; for logs and metrics, never for decisions."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


@types.coroutine
def turn() -> Generator[None]:
    """Go on in the next turn of the event loop: what it has read in this one is seen first. Takes no time."""
    yield  # as `asyncio.sleep(0)` does, three calls further down


def in_words(seconds: float) -> str:
    """A time that passed, as sentences tell it: `40 s`, `12 minutes`, `3 hours`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7_200 else f"{seconds / 3_600:.0f} hours"
