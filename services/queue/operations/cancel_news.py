"""Which leased items were cancelled a moment ago: told to calls of workers that wait for it.

A process hears of cancels of its own at once, and of others' by rows on the shards, of which there are none while
nothing is cancelled under a lease. They are news and no more: a worker that hears one extends the lease, and is
told what is true. Of news that got lost it is told by its next extension.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from services.queue.settings import QueueSettings
from services.queue.store import workers
from services.queue.store.shard_store import Store, living
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo

# Rows are read again for so long, since a transaction may take as long to commit; what was heard is kept longer.
WINDOW_S: Final = 5.0
KEPT_S: Final = 15.0
# Of one answer.
TOLD_MAX: Final = 1_000
# After the last report of a worker here, news is of interest for so long.
HEEDED_S: Final = 60.0


class CancelNews:
    """What one process has heard, by namespace: ids with their numbers, in the order of hearing."""

    def __init__(self, stores: Mapping[ShardNo, Store], settings: QueueSettings, clock: Clock) -> None:
        self._stores = stores
        self._settings = settings
        self._clock = clock
        self._heard: dict[str, dict[str, tuple[int, float]]] = {}
        self.last = 0  # the number of what was heard last
        self._heeded_s: dict[str, float] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._is_leaving = False

    @property
    def is_heeded(self) -> bool:
        """Whether a worker has asked lately."""
        return bool(self._heeded_s)

    def forget(self) -> None:
        """Nothing is kept for namespaces whose workers ask no more."""
        before_s = self._clock.monotonic_s() - HEEDED_S
        self._heeded_s = {namespace: at_s for namespace, at_s in self._heeded_s.items() if at_s > before_s}
        self._heard = {namespace: ids for namespace, ids in self._heard.items() if namespace in self._heeded_s}

    async def step(self) -> None:
        """Read what other processes have cancelled."""
        await asyncio.gather(*map(self._read, living(self._stores)))

    async def _read(self, store: Store) -> None:
        with contextlib.suppress(Unavailable):  # it is read again, and extensions tell it too
            rows = await workers.cancelled_lately(store.pool, WINDOW_S, self._settings.cancel_news_max)
            ids: dict[str, list[str]] = {}
            for row in reversed(rows):
                ids.setdefault(row.namespace, []).append(row.item_id)
            for namespace, cancelled in ids.items():
                self.hear(namespace, cancelled)

    def hear(self, namespace: str, ids: Iterable[str]) -> None:
        """These were cancelled, maybe under a lease."""
        if namespace not in self._heeded_s:
            return
        now_s = self._clock.monotonic_s()
        heard = self._heard.setdefault(namespace, {})
        before = self.last
        for item_id in ids:
            if item_id not in heard:
                self.last += 1
                heard[item_id] = self.last, now_s
        while heard and (
            len(heard) > self._settings.cancel_news_max or next(iter(heard.values()))[1] < now_s - KEPT_S
        ):
            del heard[next(iter(heard))]
        if not heard:
            del self._heard[namespace]
        if self.last > before:
            self._wake(namespace)

    async def wait(self, namespace: str, after: int, wait_s: float) -> tuple[list[str], int]:
        """What was heard behind a number, a call's worth of it, and the last number; waits for the first."""
        self._heeded_s[namespace] = self._clock.monotonic_s()
        found = self._behind(namespace, after)
        if not found and wait_s > 0 and not self._is_leaving:
            waiting = self._waiting.setdefault(namespace, set())
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.add(woken)
            try:
                await asyncio.wait([woken], timeout=wait_s)
            finally:
                waiting.discard(woken)
                if not waiting:
                    self._waiting.pop(namespace, None)
            found = self._behind(namespace, after)
        return [item_id for item_id, _ in found], found[-1][1] if found else after

    def leave(self) -> None:
        """Nobody waits here any longer."""
        self._is_leaving = True
        for namespace in list(self._waiting):
            self._wake(namespace)

    def _behind(self, namespace: str, after: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for item_id, (number, _) in reversed(self._heard.get(namespace, {}).items()):
            if number <= after:
                break
            found.append((item_id, number))
        return found[::-1][:TOLD_MAX]

    def _wake(self, namespace: str) -> None:
        for woken in self._waiting.get(namespace, ()):
            if not woken.done():
                woken.set_result(None)
