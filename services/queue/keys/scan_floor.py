"""Where the living rows of an index begin, so that a scan need not walk over the dead ones before them.

What is served leaves at the front of an index ordered by time. While a snapshot is held open, vacuum can clean up
none of it, and each scan from the beginning would walk over everything served since. But nothing new comes to lie
there: a row's time is never before the shard's now, and only a transaction that is still open may bring one of a
while ago. So a scan begins `MARGIN` before the first row that the last one has found, and every `WHOLE_S` at the
beginning all the same: what a process remembers only saves time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from services.queue.keys.key_buffer import START
from services.queue.model import EARLIEST, Bound, Key

MARGIN = timedelta(seconds=10)
WHOLE_S = 15.0


class ScanFloor:
    """Of one index and shard."""

    __slots__ = ("_at", "_whole_s")

    def __init__(self) -> None:
        self._at = EARLIEST
        self._whole_s = float("-inf")

    def start(self, now_s: float) -> datetime:
        """The time from which to scan now."""
        if now_s - self._whole_s >= WHOLE_S:
            self._whole_s = now_s
            return EARLIEST
        return self._at

    def found(self, first: datetime | None) -> None:
        """A scan from `start` found this first, none in the future; None: nothing."""
        if first is not None:
            self._at = first - MARGIN


class KeysFloor:
    """Of one topic's keys on one shard: behind the dead ones of the priority that was found first."""

    __slots__ = ("_floor", "_priority")

    def __init__(self) -> None:
        self._floor = ScanFloor()
        self._priority = START[0]

    def start(self, now_s: float) -> Bound:
        """The bound from which to look, beside all keys of better priorities."""
        at = self._floor.start(now_s)
        return START if at == EARLIEST else (self._priority, at, START[2])

    def found(self, keys: Sequence[Key]) -> None:
        """A look from `start` found these keys. None may be because of a pause: then what was known stays."""
        if keys:
            self._priority = keys[0].priority
            self._floor.found(keys[0].deliver_at)
