"""Flushes shared by concurrent requests: per shard and verb, the next starts when the last one ends.

An idle shard flushes the first request alone, one turn of the event loop after it came: when the processor is
short, a turn brings many. While each brings more, a flush waits for a few: clients that were answered together
return one after another. Under load a flush carries what gathered during the one before. Nobody's answer is
given before the flush that carries it has committed. When the database refuses a flush for its content, its
halves are tried, so that one bad row does not fail its neighbours.

Calls of few entries and calls of many wait in two lines, each with a flush of its own: a step of a small DAG
does not wait for the statement that ends hundreds of nodes of a large one, nor is it made part of it. Entries
that had better not be in two flushes at once say so by a tag: a light call that shares one with heavy calls
waits in their line.

What does not fit into a flush is shared between tenants; a call that would join a line that does not move is
refused. Where there is a `Patience`, calls do not wait for a flush that takes too long, in it or behind it: it
goes on without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence, Set
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from shared.admission.connection_priority import Urgency
from shared.admission.delay import Standing, overloaded
from shared.admission.fairness import FairLine
from shared.clock import SystemClock, turn
from shared.errors import Invalid, ServiceError, ShardUnavailable
from shared.postgres.connections import Pool

E = TypeVar("E")
R = TypeVar("R")

_clock = SystemClock()

# A call of more entries is heavy. Folding so many acks of a large DAG takes a few milliseconds.
LIGHT_ENTRIES_MAX = 32
# Turns of the event loop that a flush waits for at most, the next one only where the last has brought calls.
TURNS_MAX = 4
# Turns that a flush behind another gives besides: what the end of that one let in at the entrance begins in the
# first and joins in the second. Else a few calls stay apart, in two halves whose flushes alternate. Where more
# wait than are few, one more is little gain, and halves are as well: while one is flushed the other is worked on.
TURNS_BEHIND = 2
FEW_CALLS_MAX = 7
# For so long after a call was let in others are, too: a look at the shard and the lines costs more than to join.
# Where the shard is found away meanwhile they are sent away with all who wait.
LET_IN_S = 0.05
# While a flush takes too long, those who came to stand behind it are told so often in the time of patience.
LOOKS_WHILE_LATE = 4

_UNTAGGED: frozenset[Hashable] = frozenset()


class BatcherLimits(NamedTuple):
    """Entries of a flush; entries that wait at most; for how long the oldest may, before others are refused; and
    what the texts of a flush may take: `size_of` makes them count."""

    items_max: int
    waiting_max: int = 50_000
    wait_s: float = 1.0
    bytes_max: int = 16 * 1024 * 1024

    def size_of(self, entries: int, texts: Sequence[str | None]) -> int:
        """What a call of so many entries, with these texts, counts for in a flush: their number or their bytes, by
        which of the two it fills more of one."""
        chars = sum(map(len, filter(None, texts)))
        if 4 * chars * self.items_max <= entries * self.bytes_max:
            return entries  # no character takes more than four bytes
        bytes_all = sum([len(text if text.isascii() else text.encode()) for text in texts if text is not None])
        return max(entries, -(-bytes_all * self.items_max // self.bytes_max))


class Late(ShardUnavailable):
    """The call waits no more for a flush that takes too long. It may be in it, whose end is `ended`."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        super().__init__("a shard takes too long", outcome="unknown")
        self.ended = ended


class Patience(NamedTuple, Generic[E, R]):
    """For how long calls wait for a flush, in it or behind it; who is told that it takes longer, again and again
    while it goes on; and who takes the results of a call that is not there any more, or, with its tenant, what was
    asked of a flush that takes longer, or may have been done."""

    wait_s: Callable[[], float]
    late: Callable[[], None]
    unheard: Callable[[Hashable, Sequence[R]], None]
    unsure: Callable[[Hashable, Sequence[E]], None]


class _Call(msgspec.Struct, Generic[E, R]):
    entries: list[E]
    future: asyncio.Future[Sequence[R]]
    tags: Set[Hashable]
    tenant: Hashable


class _Weight(Generic[E, R]):
    """One line, and the flush that runs for it. `tags` are of calls that wait, `flying` of those in the flush,
    which are `carried` since then. One timer looks at it now and then: a flush costs none of its own."""

    def __init__(self) -> None:
        self.line: FairLine[_Call[E, R]] = FairLine()
        self.tags: set[Hashable] = set()
        self.flying: Set[Hashable] = _UNTAGGED
        self.task: asyncio.Task[None] | None = None
        self.carried: Sequence[_Call[E, R]] = ()
        self.since_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] | None = None  # of a flush that takes too long

    def has(self, tags: Set[Hashable]) -> bool:
        """Whether one of these tags waits or is in the flush."""
        return not (self.tags.isdisjoint(tags) and self.flying.isdisjoint(tags))

    def take(self, room: int) -> list[_Call[E, R]]:
        """The calls of the next flush."""
        calls = self.line.take(room)
        self.flying = self.tags
        self.tags = {tag for call in self.line for tag in call.tags} if self.line.calls else set()
        return calls


class Batcher(Generic[E, R]):
    """Joins the entries of concurrent calls into flushes; two at most run at once, one of them of light calls."""

    def __init__(
        self,
        flush: Callable[[list[E]], Awaitable[Sequence[R]]],
        limits: BatcherLimits,
        level: Urgency = Urgency.DEQUEUE,
        pool: Pool | None = None,
        *,
        tags: Callable[[Sequence[E]], Set[Hashable]] | None = None,
        patience: Patience[E, R] | None = None,
    ) -> None:
        self._flush = flush
        self._limits = limits
        self._level = level
        self._pool = pool
        if pool is not None:
            pool.breaker.listeners.append(self._heard)
            pool.history.listeners.append(self._send_away)
        self._tags = tags
        self._patience = patience
        self._light, self._heavy = _Weight[E, R](), _Weight[E, R]()
        self._standing = Standing(limits.wait_s, _clock)
        self._let_in_s = -inf  # when a call was let in last, after a look
        self._loop: Any = None  # the running one, once a call has come

    async def submit(
        self,
        entries: list[E],
        tenant: Hashable = None,
        *,
        size: int | None = None,
        texts: Sequence[str | None] = (),
    ) -> Sequence[R]:
        """The results of `entries`, in their order, after the flush that carried them.

        `size` is what they count for in a flush, where that is not one each; more where their `texts` are long.

        Raises:
            Overloaded: too much waits already, or for too long: nothing was done.
            ShardUnavailable: the shard does not answer, or fell silent while they waited: nothing was done.
            Late: a flush takes longer than there is patience.
        """
        now_s = _clock.monotonic_s()
        self._let_in(now_s)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # until Python 3.12 a system call each time
        future: asyncio.Future[Sequence[R]] = self._loop.create_future()
        size = len(entries) if size is None else size
        if texts:
            size = self._limits.size_of(size, texts)
        weight = self._light
        tags: Set[Hashable] = _UNTAGGED if self._tags is None else self._tags(entries)
        if size > LIGHT_ENTRIES_MAX or (tags and self._heavy.has(tags)):
            weight = self._heavy
        weight.line.push(_Call(entries, future, tags, tenant), tenant, size, now_s)
        if tags:
            weight.tags |= tags
        if weight.task is None:
            self._go_on(weight)
        # A caller that is cancelled takes only its own future with it: the flush that carries it goes on.
        return await future

    def _let_in(self, now_s: float) -> None:
        if now_s - self._let_in_s < LET_IN_S and not self._is_full:
            return
        if self._pool is not None:
            self._pool.check()
        if self._is_overloaded:
            raise overloaded(self._level)
        self._let_in_s = now_s

    @property
    def is_overloaded(self) -> bool:
        """Whether a call that came now would be refused because too much waits."""
        if _clock.monotonic_s() - self._let_in_s < LET_IN_S and not self._is_full:
            return False
        return self._is_overloaded

    @property
    def _is_full(self) -> bool:
        return self._light.line.size + self._heavy.line.size >= self._limits.waiting_max

    @property
    def _is_overloaded(self) -> bool:
        if self._is_full or (self._pool is not None and self._pool.is_standing):
            return True
        oldest_since_s = self._oldest_since_s
        return oldest_since_s is not None and self._standing.sheds(oldest_since_s, self._level)

    @property
    def _oldest_since_s(self) -> float | None:
        light, heavy = self._light.line.calls, self._heavy.line.calls
        if not light:
            return heavy[0].since_s if heavy else None
        return min(light[0].since_s, heavy[0].since_s) if heavy else light[0].since_s

    def _heard(self, state: str) -> None:
        if state == "open":
            self._send_away()

    def _send_away(self) -> None:
        """Refuse whatever waits: the shard is away, or has lost the history that the entries are of."""
        assert self._pool is not None
        self._let_in_s = -inf
        for weight in (self._light, self._heavy):
            for call in weight.line.clear():
                _fail(call.future, self._pool.away())
            weight.tags = set()

    def _may_start(self, weight: _Weight[E, R]) -> bool:
        # Light calls that came before with a tag of a heavy one go first; later ones stand in its line.
        if not weight.line.calls:
            return False
        return weight is self._light or not weight.tags or not self._light.has(weight.tags)

    def _go_on(self, weight: _Weight[E, R]) -> None:
        if weight.task is None and self._may_start(weight):
            weight.task = self._loop.create_task(self._run(weight))

    async def _run(self, weight: _Weight[E, R]) -> None:
        try:
            while self._may_start(weight):
                for _ in range(TURNS_MAX):
                    size = weight.line.size
                    await turn()  # what the loop reads in this one joins
                    if not size < weight.line.size < self._limits.items_max:
                        break
                if not self._may_start(weight):
                    break  # all were sent away, or one joined that a light call has to end before
                calls = weight.take(self._limits.items_max)
                self._standing.served(self._oldest_since_s)
                if self._patience is None:
                    await self._flush_calls(calls)
                else:
                    await self._flush_watched(weight, calls, self._patience)
                weight.flying = _UNTAGGED
                if weight is self._light and self._heavy.line.calls:
                    self._go_on(self._heavy)
                if 0 < len(weight.line.calls) <= FEW_CALLS_MAX:
                    for _ in range(TURNS_BEHIND):
                        await turn()
        finally:
            weight.task, weight.flying = None, _UNTAGGED

    async def _flush_watched(
        self, weight: _Weight[E, R], calls: list[_Call[E, R]], patience: Patience[E, R]
    ) -> None:
        weight.carried, weight.since_s = calls, _clock.monotonic_s()
        if weight.timer is None:
            weight.timer = self._loop.call_later(patience.wait_s(), self._look, weight, patience)
        try:
            await self._flush_calls(calls)
        finally:
            weight.carried = ()
            if weight.ended is not None:
                weight.ended.set_result(None)
                weight.ended = None

    def _look(self, weight: _Weight[E, R], patience: Patience[E, R]) -> None:
        """Nobody waits any more for a flush that takes too long."""
        weight.timer = None
        if not weight.carried:
            return
        wait_s = patience.wait_s()
        left_s = weight.since_s + wait_s - _clock.monotonic_s()
        if left_s <= 0:
            patience.late()
            if weight.ended is None:
                weight.ended = self._loop.create_future()
                for call in weight.carried:
                    patience.unsure(call.tenant, call.entries)
            for call in (*weight.carried, *weight.line.clear()):
                _fail(call.future, Late(weight.ended))
            weight.tags = set()
            left_s = wait_s / LOOKS_WHILE_LATE
        weight.timer = self._loop.call_later(left_s, self._look, weight, patience)

    async def _flush_calls(self, calls: list[_Call[E, R]]) -> None:
        entries = calls[0].entries if len(calls) == 1 else [entry for call in calls for entry in call.entries]
        try:
            results = await self._flush(entries)
        except Invalid as error:
            if len(calls) == 1:
                _fail(calls[0].future, error)
                return
            middle = len(calls) // 2
            await self._flush_calls(calls[:middle])
            await self._flush_calls(calls[middle:])
            return
        except Exception as error:
            for call in calls:
                _fail(call.future, error)
                if self._patience is not None and isinstance(error, ServiceError) and error.outcome == "unknown":
                    self._patience.unsure(call.tenant, call.entries)
            return
        if len(calls) == 1 and not calls[0].future.done():
            calls[0].future.set_result(results)
            return
        start = 0
        for call in calls:
            end = start + len(call.entries)
            if not call.future.done():
                call.future.set_result(results[start:end])
            elif self._patience is not None:
                self._patience.unheard(call.tenant, results[start:end])
            start = end


def _fail(future: asyncio.Future[Sequence[R]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller that hung up will not look
