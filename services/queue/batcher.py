"""Flushes shared by concurrent requests: per shard and verb, the next starts when the last one ends.

An idle shard flushes the first request alone and at once; under load a flush carries what gathered during
the one before. Nobody's answer is given before the flush that carries it has committed. When the database
refuses a flush for its content, its halves are tried, so that one bad row does not fail its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shared.errors import Invalid
from shared.pg import Pool

E = TypeVar("E")
R = TypeVar("R")


class Batcher(Generic[E, R]):
    """Joins the entries of concurrent calls into flushes of at most `items_max`."""

    def __init__(
        self,
        flush: Callable[[list[E]], Awaitable[Sequence[R]]],
        *,
        items_max: int,
        pool: Pool | None = None,
    ) -> None:
        self._flush = flush
        self._pool = pool
        if pool is not None:
            pool.breaker.listeners.append(self._heard)
        self._items_max = items_max
        self._waiting: list[tuple[list[E], asyncio.Future[Sequence[R]]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, entries: list[E]) -> Sequence[R]:
        """The results of `entries`, in their order, after the flush that carried them.

        Raises:
            ShardUnavailable: the shard does not answer, or fell silent while they waited: nothing was done.
        """
        if self._pool is not None:
            self._pool.check()
        future: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        # A caller that hangs up must not undo what others share: the flush goes on without it.
        return await asyncio.shield(future)

    def _heard(self, state: str) -> None:
        if state == "open" and self._pool is not None:
            waiting, self._waiting = self._waiting, []
            for _, future in waiting:
                _fail(future, self._pool.away())

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls = self._gather()
                await self._flush_calls(calls)
        finally:
            self._running = None

    def _gather(self) -> list[tuple[list[E], asyncio.Future[Sequence[R]]]]:
        size = taken = 0
        for entries, _ in self._waiting:
            if taken and size + len(entries) > self._items_max:
                break
            size += len(entries)
            taken += 1
        calls, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return calls

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
