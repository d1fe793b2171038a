"""Who gets the next free connection: acks before dequeues before enqueues before lists.

A pool's connections are counted here, so that the pool itself never has anybody waiting. A less urgent call may
not take the last ones: whatever enqueues and lists do, an ack finds a connection. Those who wait are served by
urgency, then by arrival, and no longer than a given time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

from shared.clock import Clock, SystemClock

WAITING_MAX = 1_000


class Urgency(IntEnum):
    """How much a call matters when not all can be served: what frees resources goes first."""

    SETTLE = 0  # ack, nack, extend, revive, cancel; completions of nodes
    DEQUEUE = 1  # and the duties in the background
    ENQUEUE = 2
    LIST = 3


_urgency: ContextVar[Urgency] = ContextVar("urgency", default=Urgency.DEQUEUE)


@contextmanager
def urgency(value: Urgency) -> Iterator[None]:
    """What is asked of a shard inside the block, and by tasks made there, is of this urgency."""
    token = _urgency.set(value)
    try:
        yield
    finally:
        _urgency.reset(token)


# Of the running task.
current_urgency = _urgency.get


# As `urgency`, for the rest of the running task.
set_urgency: Callable[[Urgency], object] = _urgency.set


class ConnectionLine:
    """`size` places. Each level of urgency below the highest leaves one more to those above it."""

    def __init__(self, size: int, clock: Clock | None = None) -> None:
        self._limits = [max(1, size - level) for level in Urgency]
        self._taken = 0
        self._clock = clock or SystemClock()
        # By urgency, then by arrival: since when, and the place to come.
        self._lines: tuple[deque[tuple[float, asyncio.Future[None]]], ...] = tuple(deque() for _ in Urgency)
        self.waiting = 0  # calls that wait for a place

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._taken

    def oldest_since_s(self, level: Urgency) -> float | None:
        """Since when the oldest waits of those whom a call of this urgency would wait behind (None: nobody)."""
        if not self.waiting:
            return None
        return min((line[0][0] for line in self._lines[: level + 1] if line), default=None)

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody as urgent waits for it."""
        level = _urgency.get()
        if self._taken >= self._limits[level] or (self.waiting and any(self._lines[: level + 1])):
            return False
        self._taken += 1
        return True

    async def enter(self, timeout_s: float) -> None:
        """Take a place, waiting for one if need be.

        Raises:
            TimeoutError: none became free in time, or too many wait already.
        """
        if self.try_enter():
            return
        if self.waiting >= WAITING_MAX:
            raise TimeoutError
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines[_urgency.get()]
        entry = self._clock.monotonic_s(), future
        line.append(entry)
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.leave()  # the place came just as the call went
            else:
                future.cancel()
                if entry in line:
                    line.remove(entry)
                    self.waiting -= 1
                self._serve()
            raise

    def leave(self) -> None:
        """Give the place back."""
        self._taken -= 1
        if self.waiting:
            self._serve()

    def _serve(self) -> None:
        for line, limit in zip(self._lines, self._limits, strict=True):
            while line:
                if self._taken >= limit:
                    return
                _, future = line.popleft()
                self.waiting -= 1
                if not future.cancelled():
                    self._taken += 1
                    future.set_result(None)
