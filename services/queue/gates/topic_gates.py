"""Limits of topics, kept where items are handed out: so many a second, so many in flight, nothing for a while.

A topic with limits has a gate: a row of the shard that is the home of its slot. A call that is to claim items of
the topic goes through the gate first: in a transaction that holds the row it is granted as many as there is room
for. The grant is kept in the row until the call has claimed them, and for `GRANT_S` where nobody ever says so.
In flight is what the shards' exact counts say is leased, and besides what was granted: a room comes back by the
end of a lease, whichever way it ended and whoever saw it, since nothing but the lease stands for it. So several
processes, those that crash at any place, and a Redis that is lost, hand out no item more. A shard that does not
answer, or not in time, counts as it was counted last, and what was granted since; what it says late is taken from
then on. Tokens of a rate are taken with the grant; those of what could not be claimed are given back.

A topic may be throttled by a consumer: its gate says that nothing of it is handed out for a while, whether it has
limits or not. The process that is asked keeps to it at once, the others within a second, as with limits.

A topic without either has no gate, and none of its calls comes here.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from services.queue.gates.in_time import GATE_S_MAX, AtHome, InTime, moved, turn_by
from services.queue.gates.key_gates import KeyGates
from services.queue.gates.leaves import Leaves
from services.queue.gates.limits import AGAIN_S, GRANT_S, Grant, Pair, TopicLimits, filled
from services.queue.model import EARLIEST
from services.queue.store import gates as rows
from services.queue.store.gates import GateRow, Throttle
from services.queue.store.shard_store import Store, living
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo, new_token
from shared.postgres.connections import Transaction
from shared.shards.map_file import slot_of
from shared.shards.shard_map import ShardMap

# So many gates of a home are locked by a process at once.
HOLDING_MAX = 2


class _LateCount(NamedTuple):
    """What a shard has counted, told late: by how much that differs from what it counted as when it was asked, the
    grants that were on their way then included. It holds while the gate has that `mark` of it."""

    mark: str
    change: int


class _Gate:
    """A gate's row, while it is locked."""

    def __init__(self, row: GateRow, limits: TopicLimits) -> None:
        self.at = row.at
        self.limits = limits
        self.slow_s = 0.0 if row.slow_until is None else (row.slow_until - row.at).total_seconds()
        now_s = row.at.timestamp()
        self.granted: dict[str, list[float]] = {
            token: entry for token, entry in json.loads(row.granted).items() if entry[1] > now_s
        }
        leased = json.loads(row.leased)
        # The shard map of whoever counted last.
        self.map_version: int = leased.pop("map", 0)
        # Shards that have not been heard since then. Whoever hears one takes its mark away.
        self.marks: dict[str, str] = leased.pop("late", {})
        # As it is kept, each count holds all that is on its way besides: it may be leased there.
        self.leased: dict[str, int] = leased
        self._fresh: set[str] = set()
        self.is_changed = False
        self.tokens: float | None = None
        if limits.rate is not None:
            self.tokens = filled(row, limits.rate, limits.burst)

    @property
    def on_their_way(self) -> int:
        """How many items calls are about to claim."""
        return sum(int(items) for items, _ in self.granted.values())

    def grant(self, token: str, wanted: int, among: int) -> Grant:
        """So many of those that are wanted are claimed next: of what there is room for, one of so many parts."""
        if self.slow_s > 0:
            return Grant(0, self.slow_s)
        room: float = wanted * among
        if self.limits.concurrency is not None:
            room = min(room, self.limits.concurrency - self._in_flight - self.on_their_way)
        again_s = AGAIN_S
        if self.tokens is not None and self.limits.rate is not None:
            # A billionth is what an interval of microseconds may lack.
            whole = math.floor(self.tokens + 1e-9)
            if whole < room:
                room = whole
                again_s = (whole + 1 - self.tokens) / self.limits.rate
        items = max(math.ceil(room / among), 0)
        if items:
            self.granted[token] = [items, (self.at + timedelta(seconds=GRANT_S)).timestamp()]
            if self.tokens is not None:
                self.tokens -= items
        return Grant(items, max(again_s, 0.001))

    def forget_removed(self, living: Set[str], map_version: int) -> None:
        """What was leased on a shard that has left the map takes no room. Who follows an older map than whoever
        counted last cannot tell a shard that has left from one that has joined."""
        if map_version >= self.map_version:
            self.map_version = map_version
            self.leased = {number: count for number, count in self.leased.items() if number in living}
            self.marks = {number: mark for number, mark in self.marks.items() if number in living}

    @property
    def _in_flight(self) -> int:
        on_their_way = self.on_their_way
        return sum(
            count if number in self._fresh else max(count - on_their_way, 0)
            for number, count in self.leased.items()
        )

    def keep_counts(self, granted: int) -> None:
        """Shards may be silent at the next look: what is on its way may be leased on any of them by then."""
        self.leased = {
            number: count + (self.on_their_way if number in self._fresh else granted)
            for number, count in self.leased.items()
        }

    def heard(self, number: str, count: int) -> None:
        """So many are leased on a shard."""
        self._fresh.add(number)
        self.leased[number] = count
        self.marks.pop(number, None)

    def heard_late(self, number: str, told: _LateCount) -> None:
        """The same, as of when it was asked. All that came since are grants, which are in its count here."""
        if self.marks.get(number) == told.mark:
            self.leased[number] = self.leased.get(number, 0) + told.change
            self._mark(number)

    def unheard(self, number: str) -> _LateCount:
        """A shard counts as it did last. What it may say yet, less what it will have counted."""
        if number not in self.marks:
            self._mark(number)
        return _LateCount(self.marks[number], self.on_their_way - self.leased.get(number, 0))

    def _mark(self, number: str) -> None:
        self.marks[number] = new_token()
        self.is_changed = True

    def counts(self) -> str:
        """What is leased on each shard, as it is kept."""
        if not self.leased and not self.marks:
            return "{}"
        kept: dict[str, object] = {**self.leased, "map": self.map_version}
        return json.dumps(kept | {"late": self.marks} if self.marks else kept)

    def settle(self, token: str, unused: int, at: Collection[ShardNo] | None) -> None:
        """What was granted is claimed, or will not be: `at` these shards and no others, if that is known."""
        entry = self.granted.pop(token, None)
        if entry is None:
            return
        if self.tokens is not None:
            self.tokens = min(self.tokens + unused, self.limits.burst)
        if at is not None:
            items, known = int(entry[0]), {str(number) for number in at}
            self.leased = {
                number: count if number in known else max(count - items, 0)
                for number, count in self.leased.items()
            }


class Gates:
    """Those of this process' topics. `limits` are what any shard has; `wake` is told of topics whose change.

    `keep` holds on to what goes on behind a call.
    """

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        shards: ShardMap,
        clock: Clock,
        *,
        wake: Callable[[str, str], None],
        keep: Callable[[Awaitable[None]], None],
    ) -> None:
        self._stores = stores
        self._shards = shards
        self._clock = clock
        self._wake = wake
        self.limits: dict[Pair, TopicLimits] = {}
        self._topics: dict[str, list[str]] = {}
        self._set_at: dict[Pair, datetime] = {}
        self._slow: set[Pair] = set()  # throttled as a whole, or a moment ago
        self._slow_keys: set[Pair] = set()
        self.leaves = Leaves(self._home, keep, clock)
        self.of_keys = KeyGates(stores, shards, self._home, clock, self.leaves, self.limits_of)
        self._closed: dict[Pair, float] = {}
        self._slowed = 0
        self._entering: dict[Pair, asyncio.Lock] = {}
        # One after another: what was asked first must not come last, and stand.
        self._reading = asyncio.Lock()
        self._homes = AtHome(clock, HOLDING_MAX)
        self._counts = InTime[int](clock)
        self._late_counts: dict[Pair, dict[str, _LateCount]] = {}

    # -- what is set ----------------------------------------------------------------------------------------

    async def read(self) -> int:
        """Learn which topics have limits; the newest stand. Where a shard does not answer, what is known stays."""
        async with self._reading:
            await self._read()
        return 0

    async def _read(self) -> None:
        slowed_before = self._slowed
        asked = (rows.limits(store.pool) for store in self._living())
        parts = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[Pair, tuple[datetime, str]] = {}
        slow: set[Pair] = set()
        slow_keys: set[Pair] = set()
        is_whole = self._slowed == slowed_before  # else a topic that was throttled meanwhile may be missing
        for part in parts:
            if isinstance(part, Unavailable):
                is_whole = False
            elif isinstance(part, BaseException):
                raise part
            else:
                for row in part:
                    pair, given = (row.namespace, row.topic), (row.limits_at, row.limits)
                    found[pair] = max(given, found.get(pair, given))
                    slow |= {pair} if row.topic_slow else set()
                    slow_keys |= {pair} if row.key_slow else set()
        lifted = {} if is_whole else await self._lifted([pair for pair in self.limits if pair not in found])
        slow_before = self._slow_keys
        self._slow = slow if is_whole else self._slow | slow
        self._slow_keys = slow_keys if is_whole else self._slow_keys | slow_keys
        before = self.limits
        kept = {} if is_whole else {pair: self._standing(pair, lifted.get(pair, EARLIEST)) for pair in before}
        here = {pair: TopicLimits.of(text) for pair, (_, text) in found.items()}
        self._set_at = {
            pair: found[pair][0] if pair in found else self._set_at.get(pair, EARLIEST) for pair in kept | here
        }
        self._follow({pair: limits for pair, limits in (kept | here).items() if limits is not None})
        for pair in before.keys() | self.limits.keys():
            if before.get(pair) != self.limits.get(pair) or (pair in slow_before) != (pair in self._slow_keys):
                self._closed.pop(pair, None)
                self.of_keys.forget(pair)
                self._wake(*pair)
        for memory in (self._closed, self._entering, self._late_counts):
            for pair in memory.keys() - self.limits.keys():
                del memory[pair]
        for pair in before.keys() - self.limits.keys():
            self.of_keys.drop(pair)

    async def _lifted(self, pairs: Sequence[Pair]) -> dict[Pair, datetime]:
        """Of topics of which no shard tells any limits the latest time at which one says that they were lifted. A
        shard that is away may be all that has had them; one that answers may have been told of their end."""
        found: dict[Pair, datetime] = {}
        asked = (rows.lifted(store.pool, pairs) for store in self._living()) if pairs else ()
        for part in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(part, Unavailable):
                continue
            if isinstance(part, BaseException):
                raise part
            for row in part:
                pair = (row.namespace, row.topic)
                found[pair] = max(row.limits_at, found.get(pair, EARLIEST))
        return found

    def _standing(self, pair: Pair, lifted_at: datetime) -> TopicLimits | None:
        """The limits known of a topic, unless they were lifted since; None where it is not throttled either."""
        if lifted_at <= self._set_at.get(pair, EARLIEST):
            return self.limits[pair]
        return TopicLimits() if pair in self._slow or pair in self._slow_keys else None

    def _follow(self, limits: dict[Pair, TopicLimits]) -> None:
        self.limits = limits
        self._topics = {}
        for namespace, topic in limits:
            self._topics.setdefault(namespace, []).append(topic)

    def limited(self, namespace: str, topics: Sequence[str]) -> bool:
        """Whether any of these topics has a gate."""
        return any((namespace, topic) in self.limits for topic in topics)

    # -- going through --------------------------------------------------------------------------------------

    async def enter(
        self,
        namespace: str,
        topic: str,
        token: str,
        wanted: int,
        among: int = 1,
        *,
        within_s: float = GATE_S_MAX,
    ) -> Grant:
        """How many items of the topic a call may claim next; it tells `leave` what it has claimed of them.

        It is one `among` so many that wait, and leaves them as much room. Calls of one topic go one after
        another, and none asks again while it is known that there is no room. Where the gate takes longer than
        `within_s`, nothing is granted: what is, late, is left.
        """
        pair = namespace, topic
        limits = self.limits.get(pair)
        if limits is None or not (limits.are_whole or pair in self._slow):
            return Grant(wanted, is_kept=False)
        until_s = self._clock.monotonic_s() + within_s
        entering = self._entering.setdefault(pair, asyncio.Lock())
        if not await turn_by(entering, within_s):
            return Grant(0)
        try:
            left_s = self._closed.get(pair, -math.inf) - self._clock.monotonic_s()
            if left_s > 0:
                return Grant(0, left_s)
            found = await self._granted(pair, limits, token, wanted, among, until_s)
            if not found.items:
                self._closed[pair] = self._clock.monotonic_s() + min(found.again_s, AGAIN_S)
            return found
        finally:
            entering.release()

    async def _granted(
        self, pair: Pair, limits: TopicLimits, token: str, wanted: int, among: int, until_s: float
    ) -> Grant:
        async def enter(tx: Transaction) -> Grant:
            return await self._enter(tx, pair, limits, token, wanted, among)

        async def undo(found: Grant, _is_there: bool) -> None:
            if found.items:
                await self.leave(*pair, token, found.items, at=())

        try:
            return await self._homes.run(self._home(pair), pair, enter, until_s, undo)
        except Unavailable as error:
            self._homes.shut(pair, error)
            return Grant(0)

    async def leave(
        self, namespace: str, topic: str, token: str, unused: int, *, at: Collection[ShardNo] | None = None
    ) -> None:
        """What was granted to the call is claimed, but for so many; `at` no other shards than these."""
        pair = namespace, topic

        async def work(tx: Transaction) -> None:
            limits = self.limits.get(pair)  # as they are when it is tried
            if limits is None:
                return
            row = await rows.lock(tx, *pair, slot_of(*pair))
            if row is None:
                raise moved()
            gate = _Gate(row, limits)
            gate.settle(token, unused, at)
            await _keep(tx, pair, gate)

        if pair in self.limits:
            await self.leaves.leave(pair, work)
        self._closed.pop(pair, None)

    def limits_of(self, pair: Pair) -> TopicLimits | None:
        """What is set for a topic now."""
        return self.limits.get(pair)

    def by_key(self, pair: Pair) -> TopicLimits | None:
        """The limits of a topic whose keys have gates, too."""
        limits = self.limits.get(pair)
        return limits if limits is not None and (limits.are_by_key or pair in self._slow_keys) else None

    async def slow(self, namespace: str, topic: str, slow_s: float, key: str = "") -> None:
        """Nothing of a topic, or of a key of it, is handed out for so long.

        Raises:
            Unavailable: the home of the topic does not answer; nothing is changed.
        """
        pair = namespace, topic
        if not await rows.slow(self._home(pair).pool, *pair, slot_of(*pair), slow_s, key):
            raise moved()
        self._slowed += 1
        if key:
            self._slow_keys.add(pair)
        else:
            self._slow.add(pair)
            self._closed[pair] = self._clock.monotonic_s() + min(slow_s, AGAIN_S)
        if pair not in self.limits:
            self._follow(self.limits | {pair: TopicLimits()})
            self._wake(*pair)  # those that wait do so at the gate from now on

    def opened(self, namespace: str) -> list[str]:
        """Items of the namespace were settled here: which topics may have room again."""
        topics = self._topics.get(namespace, [])
        for topic in topics:
            self._closed.pop((namespace, topic), None)
            self.of_keys.opened((namespace, topic))
        return topics

    async def lift(self, namespace: str, topic: str, key: str | None) -> None:
        """End the throttles of a topic and of all its keys, or of one key.

        Raises:
            Unavailable: the home of the topic does not answer; nothing is changed.
        """
        pair = namespace, topic
        self._home(pair).pool.admit()
        if not await rows.lift(self._home(pair).pool, *pair, slot_of(*pair), key):
            raise moved()
        if pair in self.limits:  # nothing is kept of topics that have none, whatever they are called
            self._closed.pop(pair, None)
            self.of_keys.forget(pair)
            self._wake(*pair)

    async def throttles(self, namespace: str, topic: str, limit: int) -> list[Throttle]:
        """What is throttled of a topic now, itself first, then keys in their order."""
        pair = namespace, topic
        if pair not in self._slow and pair not in self._slow_keys:
            return []
        return await rows.throttles(self._home(pair).pool, *pair, limit)

    async def in_flight(self, namespace: str, topic: str) -> int:
        """How many items are leased, on the shards that answer."""
        asked = self._ask_counts((namespace, topic), self._living())
        await self._counts.answers(asked)
        return sum(task.result() or 0 for task in asked.values() if task.done())

    async def _enter(
        self, tx: Transaction, pair: Pair, limits: TopicLimits, token: str, wanted: int, among: int
    ) -> Grant:
        row = await rows.lock(tx, *pair, slot_of(*pair))
        if row is None:
            return Grant(0)  # the slot has moved, and this process has not heard of it yet
        gate = _Gate(row, limits)
        if limits.concurrency is not None:
            # Only now: what was granted before, and is not in the row any more, has been leased by then.
            await self._count(tx, pair, gate)
        is_known = all(str(store.number) in gate.leased for store in self._living())
        found = gate.grant(token, wanted, among) if is_known or limits.concurrency is None else Grant(0)
        if found.items or gate.is_changed:
            gate.keep_counts(found.items)
            await _keep(tx, pair, gate)
        return found

    async def _count(self, tx: Transaction, pair: Pair, gate: _Gate) -> None:
        """Let the gate know how many items are leased on each shard.

        The home is asked in its transaction, unless it was late with that.
        """
        home, living = self._home(pair), self._living()
        others = [store for store in living if store is not home or self._counts.is_late(home.number)]
        asked = self._ask_counts(pair, others)
        heard: dict[str, int] = {}
        try:
            if home not in others:
                counted = self._counts.measured(home.number, rows.leased(tx, *pair))
                heard[str(home.number)] = await counted
        finally:
            await self._counts.answers(asked)
        gate.forget_removed({str(store.number) for store in living}, self._shards.version)
        told = self._late_counts.get(pair, {})
        for store in others:
            number, task = str(store.number), asked.get(store.number)
            count = task.result() if task is not None and task.done() else None
            if count is not None:
                heard[number] = count
                continue
            if number in told:
                gate.heard_late(number, told.pop(number))
            unheard = gate.unheard(number)
            if task is not None and not task.done():
                task.add_done_callback(partial(self._hear_late, pair, number, unheard))
        for number, count in heard.items():
            gate.heard(number, count)

    def late(self) -> Set[ShardNo]:
        """Shards that were late with a count."""
        return self._counts.late()

    def _ask_counts(self, pair: Pair, stores: Sequence[Store]) -> dict[ShardNo, asyncio.Task[int | None]]:
        pools = {store.number: store.pool for store in stores}
        return self._counts.ask(pools, lambda number: rows.leased(pools[number], *pair))

    def _hear_late(self, pair: Pair, number: str, unheard: _LateCount, task: asyncio.Task[int | None]) -> None:
        count = None if task.cancelled() or task.exception() is not None else task.result()
        if count is not None and pair in self.limits:
            change = unheard.change + count
            self._late_counts.setdefault(pair, {})[number] = unheard._replace(change=change)

    def _living(self) -> list[Store]:
        """The shards that the map names."""
        return living(self._stores)

    def _home(self, pair: Pair) -> Store:
        return self._stores[self._shards.of_slot(slot_of(*pair)).number]


async def _keep(tx: Transaction, pair: Pair, gate: _Gate) -> None:
    await rows.keep(tx, *pair, gate.tokens, gate.at, json.dumps(gate.granted), gate.counts())
