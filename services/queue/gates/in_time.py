"""What gates ask of shards is waited for so long, and no longer: who is slow holds up nobody for long.

A shard that was late with an answer is still asked the next time, a few times at once at most, but not waited for
until it has answered in time again. A transaction that is late goes on by itself; until it has ended, nobody waits
for another one of its topic.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Set
from typing import Generic, TypeVar

from services.queue.gates.limits import AGAIN_S, Pair
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.errors import ShardUnavailable, Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.postgres.connections import Transaction

T = TypeVar("T")

# A shard that takes longer to answer does not keep a gate locked. What it says then serves the next call.
IN_TIME_S = 0.5
# So many questions to a shard that is late are on their way at once.
LATE_ASKED_MAX = 2
# A gate whose transaction takes longer lets nobody through.
GATE_S_MAX = 2.0


class InTime(Generic[T]):
    """One kind of question to shards."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late: set[ShardNo] = set()
        self._asked: Counter[ShardNo] = Counter()
        self._left: set[asyncio.Task[T | None]] = set()

    def is_late(self, shard: ShardNo) -> bool:
        """Whether a shard was late the last time."""
        return shard in self._late

    def late(self) -> Set[ShardNo]:
        """Those that were."""
        return self._late

    def ask(
        self, shards: Iterable[ShardNo], ask: Callable[[ShardNo], Awaitable[T]]
    ) -> dict[ShardNo, asyncio.Task[T | None]]:
        """Begin to ask these; None stands for a refusal. Left out are those that are late, and asked enough."""
        return {
            shard: asyncio.create_task(self._ask(shard, ask))
            for shard in shards
            if shard not in self._late or self._asked[shard] < LATE_ASKED_MAX
        }

    async def answers(self, asked: dict[ShardNo, asyncio.Task[T | None]], within_s: float = math.inf) -> None:
        """Wait for those that are not late; which have answered, the tasks say. The others go on."""
        try:
            if awaited := [task for shard, task in asked.items() if shard not in self._late]:
                await asyncio.wait(awaited, timeout=min(IN_TIME_S, within_s))
        finally:
            for shard, task in asked.items():
                if not task.done():
                    self._late.add(shard)
                    self._left.add(task)
                    task.add_done_callback(self._left.discard)

    async def measured(self, shard: ShardNo, answer: Awaitable[T]) -> T:
        """An answer that is waited for, however long; it decides whether the shard is late."""
        began_s = self._clock.monotonic_s()
        try:
            return await answer
        finally:
            if self._clock.monotonic_s() - began_s < IN_TIME_S:
                self._late.discard(shard)
            else:
                self._late.add(shard)

    async def _ask(self, shard: ShardNo, ask: Callable[[ShardNo], Awaitable[T]]) -> T | None:
        self._asked[shard] += 1
        try:
            return await self.measured(shard, ask(shard))
        except Unavailable:
            return None
        finally:
            self._asked[shard] -= 1


class AtHome:
    """Transactions at the homes of gates, so many at once of each.

    Who holds a connection to a home asks other shards: with all connections they would wait for one another.
    """

    def __init__(self, clock: Clock, at_once_max: int) -> None:
        self._clock = clock
        self._at_once_max = at_once_max
        self._holding: dict[ShardNo, asyncio.Semaphore] = {}
        self._late: dict[Pair, asyncio.Task[object]] = {}
        self._shut: set[Pair] = set()

    def shut(self, pair: Pair, error: Unavailable) -> None:
        """The gate of a topic did not answer, which is said once until it does."""
        if pair not in self._shut:
            self._shut.add(pair)
            log.warning("nothing is handed out of a limited topic", topic=pair[1], detail=error.detail)

    def opened(self, pair: Pair) -> None:
        """It did."""
        self._shut.discard(pair)

    async def run(
        self,
        home: Store,
        pair: Pair,
        work: Callable[[Transaction], Awaitable[T]],
        until_s: float,
        undo: Callable[[T, bool], Awaitable[None]],
    ) -> T:
        """Do `work` in a transaction of the topic's home. Where that is late, or its answer is lost, what it has
        done is undone; which is told whether it is known to be there.

        Raises:
            Unavailable: it was refused, or is late.
        """
        holding = self._holding.setdefault(home.number, asyncio.Semaphore(self._at_once_max))
        if pair in self._late or not await turn_by(holding, until_s - self._clock.monotonic_s()):
            raise _late(home)
        task = asyncio.create_task(self._run(home, pair, work, holding, undo))
        try:
            await asyncio.wait({task}, timeout=max(until_s - self._clock.monotonic_s(), 0))
        finally:
            if not task.done():
                self._late[pair] = task
                task.add_done_callback(_told)
        if not task.done():
            raise _late(home)
        found = task.result()
        self.opened(pair)
        return found

    async def _run(
        self,
        home: Store,
        pair: Pair,
        work: Callable[[Transaction], Awaitable[T]],
        holding: asyncio.Semaphore,
        undo: Callable[[T, bool], Awaitable[None]],
    ) -> T:
        done: list[T] = []

        async def noted(tx: Transaction) -> T:
            done[:] = [await work(tx)]
            return done[0]

        try:
            try:
                found = await home.pool.transaction(noted)
            finally:
                holding.release()
            if self._late.get(pair) is asyncio.current_task():
                await undo(found, True)
            return found
        except Unavailable as error:
            if done and error.outcome == "unknown":
                await undo(done[0], False)
            raise
        finally:
            if self._late.get(pair) is asyncio.current_task():
                del self._late[pair]


async def turn_by(line: asyncio.Lock | asyncio.Semaphore, left_s: float) -> bool:
    """Take one's turn, if it comes in time."""
    if not line.locked():
        return await line.acquire()  # at once
    try:
        async with asyncio.timeout(left_s):
            return await line.acquire()
    except TimeoutError:
        return False


def moved() -> ShardUnavailable:
    """The error of a topic whose slot has moved, where this process has not heard of it yet."""
    return ShardUnavailable("the home of the topic has moved; try again", retry_after_s=AGAIN_S)


def _late(home: Store) -> ShardUnavailable:
    return ShardUnavailable(f"the gate at shard {home.number} takes too long", retry_after_s=AGAIN_S)


def _told(task: asyncio.Task[object]) -> None:
    """Nobody waits for it any more who would say what it has failed of."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.warning("a gate that nobody waited for any more has failed", detail=str(error))
