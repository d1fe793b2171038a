"""Flushes shared by concurrent requests: per shard and verb, the next starts when the last one ends.

An idle shard flushes the first request alone and at once; under load a flush carries what gathered during
the one before. Nobody's answer is given before the flush that carries it has committed. When the database
refuses a flush for its content, its halves are tried, so that one bad row does not fail its neighbours.

What does not fit into a flush is shared between tenants; who would join a line that does not move is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from shared.clock import SystemClock
from shared.errors import Invalid
from shared.fairness import FairLine
from shared.lanes import Urgency
from shared.pg import Pool
from shared.shedding import Standing, overloaded

E = TypeVar("E")
R = TypeVar("R")

_clock = SystemClock()


class BatcherLimits(NamedTuple):
    """Entries of a flush; entries that wait at most; for how long the oldest may, before others are refused."""

    items_max: int
    waiting_max: int = 50_000
    wait_s: float = 1.0


class Batcher(Generic[E, R]):
    """Joins the entries of concurrent calls into flushes."""

    def __init__(
        self,
        flush: Callable[[list[E]], Awaitable[Sequence[R]]],
        limits: BatcherLimits,
        level: Urgency = Urgency.DEQUEUE,
        pool: Pool | None = None,
    ) -> None:
        self._flush = flush
        self._limits = limits
        self._level = level
        self._pool = pool
        if pool is not None:
            pool.breaker.listeners.append(self._heard)
        self._waiting: FairLine[tuple[list[E], asyncio.Future[Sequence[R]]]] = FairLine()
        self._standing = Standing(limits.wait_s, _clock)
        self._running: asyncio.Task[None] | None = None

    async def submit(self, entries: list[E], tenant: Hashable = None, *, size: int | None = None) -> Sequence[R]:
        """The results of `entries`, in their order, after the flush that carried them.

        `size` is what they count for in a flush, where that is not one each.

        Raises:
            Overloaded: too much waits already, or for too long: nothing was done.
            ShardUnavailable: the shard does not answer, or fell silent while they waited: nothing was done.
        """
        if self._pool is not None:
            self._pool.check()
        if self.is_overloaded:
            raise overloaded(self._level)
        future: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        size = len(entries) if size is None else size
        self._waiting.push((entries, future), tenant, size, _clock.monotonic_s())
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        # A caller that is cancelled takes only its own future with it: the flush that carries it goes on.
        return await future

    @property
    def is_overloaded(self) -> bool:
        """Whether a call that came now would be refused."""
        if self._pool is not None and self._pool.is_standing:
            return True
        oldest_since_s = self._waiting.oldest_since_s
        if oldest_since_s is None:
            return False
        return self._waiting.size >= self._limits.waiting_max or self._standing.sheds(oldest_since_s, self._level)

    def _heard(self, state: str) -> None:
        if state == "open" and self._pool is not None:
            for _, future in self._waiting.clear():
                _fail(future, self._pool.away())

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls = self._waiting.take(self._limits.items_max)
                self._standing.served(self._waiting.oldest_since_s)
                await self._flush_calls(calls)
        finally:
            self._running = None

    async def _flush_calls(self, calls: list[tuple[list[E], asyncio.Future[Sequence[R]]]]) -> None:
        entries = calls[0][0] if len(calls) == 1 else [entry for part, _ in calls for entry in part]
        try:
            results = await self._flush(entries)
        except Invalid as error:
            if len(calls) == 1:
                _fail(calls[0][1], error)
                return
            middle = len(calls) // 2
            await self._flush_calls(calls[:middle])
            await self._flush_calls(calls[middle:])
            return
        except Exception as error:
            for _, future in calls:
                _fail(future, error)
            return
        start = 0
        for part, future in calls:
            if not future.done():
                future.set_result(results[start : start + len(part)])
            start += len(part)


def _fail(future: asyncio.Future[Sequence[R]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller that hung up will not look
