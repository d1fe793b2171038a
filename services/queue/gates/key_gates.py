"""Limits of the fairness keys of a topic: so many a second, so many in flight of each, nothing of one for a while.

The gate of a key is a row beside that of its topic. Items that are about to be claimed are let through by it, in a
transaction that holds the rows of all keys that a call takes items of. In flight of a key are the items that were
let through and are leased: the row names them, and where there seems to be no room it is asked which of them still
are. So a room comes back by the end of a lease, whichever way it ended, and nobody has to tell the gate. An item
of which nobody says what became of it counts for `GRANT_S`; one on a shard that does not answer in time counts.

Items of a key that has no room stay where they are, and are passed over by this process until there may be room: a
settle of the namespace here, the next token, the end of a throttle, or `AGAIN_S`. None of this needs Redis.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import NamedTuple

from services.queue.gates.in_time import GATE_S_MAX, AtHome, InTime, moved
from services.queue.gates.leaves import Leaves
from services.queue.gates.limits import AGAIN_S, GRANT_S, Pair, TopicLimits, filled
from services.queue.model import Key
from services.queue.store import gates as rows
from services.queue.store.gates import KeptGate, KeyGateRow
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.errors import ShardUnavailable, Unavailable
from shared.ids import ShardNo, shard_of
from shared.postgres.connections import Transaction
from shared.shards.map_file import slot_of
from shared.shards.shard_map import ShardMap

# So many keys are looked at for a call, and so many gates are gone through, at once.
LOOKED_AT_MAX = 256
KEYS_AT_ONCE_MAX = 64
# Keys that have no room, as this process remembers them, of a topic.
CLOSED_MAX = 10_000

# The items of keys that a call would have.
Wanted = dict[str, list[str]]


class Let(NamedTuple):
    """The items of a key that are let through, those that another call has, and how long to wait for more room.

    What is let through has its room `until_s`, by which the gate knows it again; None: it takes no room.
    """

    ids: list[str]
    gone: Set[str] = frozenset()
    again_s: float = AGAIN_S
    until_s: float | None = None


# What was let through, by keys.
Granted = dict[str, Let]


class Through(NamedTuple):
    """What becomes of items in sight: those to claim, by which gates; those to be put back, since no more are
    wanted; and those that have no room for so long, or that another call has or is about to have."""

    keys: list[Key]
    back: list[Key]
    aside: list[Key]
    again_s: float
    granted: Granted


class _Closed(NamedTuple):
    """A key that has no room until then, or (not `by_time`) until something ends."""

    until_s: float
    by_time: bool


class _KeyGate:
    """The gate of one key, while its row is locked."""

    def __init__(self, row: KeyGateRow, limits: TopicLimits) -> None:
        self.row = row
        self.limits = limits
        self.held: dict[str, float] = json.loads(row.held)
        self.map_version = int(self.held.pop("map", 0))
        self.slow_s = 0.0 if row.slow_until is None else (row.slow_until - row.at).total_seconds()
        rate = limits.key_rate
        self.tokens = None if rate is None else filled(row, rate, limits.key_burst)

    def in_doubt(self, wanted: Sequence[str]) -> list[str]:
        """The items to be asked after before these are let through: whose time to be claimed is over. Where there
        is room, those alone that were let through before: they may have come back."""
        most = self.limits.key_concurrency
        if most is None:
            return []
        now_s = self.row.at.timestamp()
        among = self.held if len(self.held) + len(wanted) > most else self.held.keys() & set(wanted)
        return [item_id for item_id in among if self.held[item_id] <= now_s]

    def drop(self, ids: Iterable[str]) -> None:
        """These are leased no more."""
        for item_id in ids:
            self.held.pop(item_id, None)

    def grant(self, ids: Sequence[str]) -> Let:
        """Which of these may be claimed now. What is held already is another call's: it has the room of it, and a
        call that did not get it must not give that back."""
        gone = {item_id for item_id in ids if item_id in self.held}
        ids = [item_id for item_id in ids if item_id not in gone]
        if self.slow_s > 0:
            return Let([], gone, self.slow_s)
        room, again_s = float(len(ids)), AGAIN_S
        most = self.limits.key_concurrency
        if most is not None:
            room = min(room, most - len(self.held))
        if self.tokens is not None and self.limits.key_rate is not None:
            whole = math.floor(self.tokens + 1e-9)
            if whole < room:
                room = whole
                again_s = (whole + 1 - self.tokens) / self.limits.key_rate
        items = max(int(room), 0)
        if self.tokens is not None:
            self.tokens -= items
        until_s = None
        if most is not None:
            until_s = (self.row.at + timedelta(seconds=GRANT_S)).timestamp()
            self.held |= dict.fromkeys(ids[:items], until_s)
        return Let(ids[:items], gone, max(again_s, 0.001), until_s)

    def settle(self, let: Let, got: set[str]) -> None:
        """Of those that were let through these have been leased: they count as long as they are.

        Where the row has an item by another time, this was told before, and what it has is another call's.
        """
        for item_id in let.ids:
            if let.until_s is not None and self.held.get(item_id) != let.until_s:
                continue
            if item_id not in got:
                self.held.pop(item_id, None)
                if self.tokens is not None:
                    self.tokens = min(self.tokens + 1, self.limits.key_burst)
            elif let.until_s is not None:
                self.held[item_id] = 0.0

    def kept(self, map_version: int) -> KeptGate:
        """What is written of it, by who follows that shard map."""
        idle_s = GRANT_S
        if self.tokens is not None and self.limits.key_rate is not None:
            idle_s += (self.limits.key_burst - self.tokens) / self.limits.key_rate
        idle_at = self.row.at + timedelta(seconds=idle_s)
        held = json.dumps({**self.held, "map": max(map_version, self.map_version)} if self.held else {})
        # Its own time: rows are locked one after another, and the wait for the next is in no bucket twice.
        return KeptGate(self.row.key, self.tokens, self.row.at, held, max(idle_at, self.row.slow_until or idle_at))


class KeyGates:
    """Those of this process' topics; `home` is where those of a topic are, `limits` what is set for one now."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        shards: ShardMap,
        home: Callable[[Pair], Store],
        clock: Clock,
        leaves: Leaves,
        limits: Callable[[Pair], TopicLimits | None],
    ) -> None:
        self._stores = stores
        self._shards = shards
        self._home = home
        self._clock = clock
        self._leaves = leaves
        self._limits = limits
        self._closed: dict[Pair, dict[str, _Closed]] = {}
        self._turns: dict[Pair, int] = {}
        self._homes = AtHome(clock, 1)
        self._asked_lanes = InTime[dict[str, str | None]](clock)
        self._asked_leased = InTime[set[str]](clock)
        self._asked_slow = InTime[dict[str, float]](clock)

    def forget(self, pair: Pair) -> None:
        """Any key of the topic may have room."""
        self._closed.pop(pair, None)
        self._turns[pair] = self._turns.get(pair, 0) + 1

    def opened(self, pair: Pair) -> None:
        """Something was settled: any key of the topic may have room that waits for no time."""
        closed = self._closed.get(pair, {})
        waits = {key: found for key, found in closed.items() if found.by_time}
        if len(waits) < len(closed):
            self._closed[pair] = waits
            self._turns[pair] = self._turns.get(pair, 0) + 1

    def drop(self, pair: Pair) -> None:
        """The topic has no limits any more."""
        self._closed.pop(pair, None)
        self._turns.pop(pair, None)

    def turn(self, pair: Pair) -> int:
        """Another number than before: items that were passed over may have room by now."""
        return self._turns.get(pair, 0)

    async def enter(
        self,
        pair: Pair,
        limits: TopicLimits,
        keys: Sequence[Key],
        wanted: int,
        *,
        within_s: float = GATE_S_MAX,
    ) -> Through:
        """Which of these items, best first, a call may claim; it tells `leave` which it has. Where the gates take
        longer than `within_s`, none: what is let through, late, is left."""
        until_s = self._clock.monotonic_s() + within_s
        lanes = await self._lanes(keys, within_s)
        open_ = self._open(pair, keys, lanes)
        chosen = _up_to(open_[:wanted], lanes)
        asked: Wanted = {}
        for key in chosen:
            if lane := lanes.get(key.id):
                asked.setdefault(lane, []).append(key.id)
        grants = await self._grants(pair, limits, asked, until_s) if asked else {}
        for lane, ids in asked.items():
            if len(grants[lane].ids) + len(grants[lane].gone) < len(ids):
                self._close(pair, lane, grants[lane].again_s)
        through = {item_id for let in grants.values() for item_id in let.ids}
        others = {item_id for let in grants.values() for item_id in let.gone}
        claimed = [key for key in chosen if not lanes.get(key.id, "") or key.id in through]
        taken = set(claimed)
        back = [key for key in self._open(pair, keys, lanes) if key not in taken and key.id not in others]
        aside = [key for key in keys if key not in taken and key not in set(back)]
        now_s = self._clock.monotonic_s()
        again_s = min((found.until_s - now_s for found in self._closed.get(pair, {}).values()), default=AGAIN_S)
        granted = {lane: let for lane, let in grants.items() if let.ids}
        return Through(claimed, back, aside, max(again_s, 0.001), granted)

    async def leave(self, pair: Pair, granted: Granted, got: set[str]) -> None:
        """Of the items that were let through these have been claimed."""
        have_room = all(let.until_s is not None for let in granted.values())
        unclaimed = any(item_id not in got for let in granted.values() for item_id in let.ids)
        if not granted or not self._are_limited(pair) or (not have_room and not unclaimed):
            return

        async def work(tx: Transaction) -> None:
            limits = self._limits(pair)  # as they are when it is tried
            if limits is None or not limits.are_by_key:
                return
            locked = await rows.lock_keys(tx, *pair, list(granted), slot_of(*pair))
            if not locked:
                raise moved()
            gates = [_KeyGate(row, limits) for row in locked]
            for gate in gates:
                gate.settle(granted[gate.row.key], got)
            await _keep(tx, pair, gates, self._shards.version)

        await self._leaves.leave(pair, work, is_known=have_room)

    def _are_limited(self, pair: Pair) -> bool:
        limits = self._limits(pair)
        return limits is not None and limits.are_by_key

    async def leased(self, ids: Sequence[str], home: Store, tx: Transaction, map_version: int) -> set[str]:
        """Which of these items are leased, or may be: their shard does not answer in time.

        Nothing is leased on a shard that has left the map. Who follows an older one than whoever has let the items
        through, which was of that version, cannot tell such a shard from one that has joined. The home is asked in
        its transaction, unless it was late with that.
        """
        parts = _by_shard(ids)
        found: set[str] = set()
        for number in [number for number in parts if self._is_away(number)]:
            part = parts.pop(number)
            found.update(() if self._shards.version >= map_version else part)
        here = () if self._asked_leased.is_late(home.number) else parts.pop(home.number, ())
        pools = {number: self._stores[number].pool for number in parts}
        asked = self._asked_leased.ask(parts, lambda number: rows.leased_among(pools[number], parts[number]))
        try:
            if here:
                found |= await self._asked_leased.measured(home.number, rows.leased_among(tx, here))
        finally:
            await self._asked_leased.answers(asked)
        for number, part in parts.items():
            task = asked.get(number)
            told = task.result() if task is not None and task.done() else None
            found.update(part if told is None else told)
        return found

    def _is_away(self, number: ShardNo) -> bool:
        store = self._stores.get(number)
        return store is None or store.pool.is_retired

    async def _grants(self, pair: Pair, limits: TopicLimits, asked: Wanted, until_s: float) -> Granted:
        """Which items of each key may be claimed. Where that cannot be known, none."""

        async def enter(tx: Transaction) -> Granted:
            return await self._enter(tx, pair, limits, asked)

        async def undo(grants: Granted, is_there: bool) -> None:
            # Tokens that may not have been taken are not given back.
            given = {
                lane: let for lane, let in grants.items() if let.ids and (is_there or let.until_s is not None)
            }
            await self.leave(pair, given, set())

        try:
            if limits.are_by_key:
                return await self._homes.run(self._home(pair), pair, enter, until_s, undo)
            # Nothing but throttles: of these nothing is kept.
            slow = await self._slow_keys(pair, list(asked), until_s - self._clock.monotonic_s())
        except Unavailable as error:
            self._homes.shut(pair, error)
            return dict.fromkeys(asked, Let([]))
        self._homes.opened(pair)
        return {lane: Let([], again_s=slow[lane]) if lane in slow else Let(ids) for lane, ids in asked.items()}

    async def _slow_keys(self, pair: Pair, keys: Sequence[str], within_s: float) -> dict[str, float]:
        home = self._home(pair)
        asked = self._asked_slow.ask([home.number], lambda _: rows.slow_keys(home.pool, *pair, keys))
        await self._asked_slow.answers(asked, within_s)
        task = asked.get(home.number)
        found = task.result() if task is not None and task.done() else None
        if found is None:
            raise ShardUnavailable("the home of the topic does not say in time which keys are throttled")
        return found

    async def _enter(self, tx: Transaction, pair: Pair, limits: TopicLimits, asked: Wanted) -> Granted:
        locked = await rows.lock_keys(tx, *pair, list(asked), slot_of(*pair))
        if not locked:
            return dict.fromkeys(asked, Let([]))  # the slot has moved, and this process has not heard of it yet
        gates = [_KeyGate(row, limits) for row in locked]
        # Only now: what was told of before, and is not leased any more, has ended by then.
        doubted = [item_id for gate in gates for item_id in gate.in_doubt(asked[gate.row.key])]
        if doubted:
            newest = max(gate.map_version for gate in gates)
            ended = set(doubted) - await self.leased(doubted, self._home(pair), tx, newest)
            for gate in gates:
                gate.drop(ended)
        found = {gate.row.key: gate.grant(asked[gate.row.key]) for gate in gates}
        await _keep(tx, pair, gates, self._shards.version)
        return found

    async def _lanes(self, keys: Sequence[Key], within_s: float) -> dict[str, str | None]:
        """The fairness keys of items that are there, empty where they have none; None: their shard is silent."""
        parts = _by_shard([key.id for key in keys])
        asked = self._asked_lanes.ask(
            parts, lambda number: rows.fairness_keys(self._stores[number].pool, parts[number])
        )
        await self._asked_lanes.answers(asked, within_s)
        found: dict[str, str | None] = {}
        for number, ids in parts.items():
            task = asked.get(number)
            told = task.result() if task is not None and task.done() else None
            found |= dict.fromkeys(ids) if told is None else {item: lane or "" for item, lane in told.items()}
        return found

    def _open(self, pair: Pair, keys: Sequence[Key], lanes: Mapping[str, str | None]) -> list[Key]:
        """The items that may have room, as far as is known."""
        now_s = self._clock.monotonic_s()
        closed = {lane: found for lane, found in self._closed.get(pair, {}).items() if found.until_s > now_s}
        if closed or pair in self._closed:
            self._closed[pair] = closed
        lane_of = ((key, lanes.get(key.id, "")) for key in keys)
        return [key for key, lane in lane_of if lane is not None and lane not in closed]

    def _close(self, pair: Pair, lane: str, again_s: float) -> None:
        closed = self._closed.setdefault(pair, {})
        if len(closed) >= CLOSED_MAX:
            closed.clear()
        # One that waits for a time of just so long is asked for once more.
        closed[lane] = _Closed(self._clock.monotonic_s() + again_s, by_time=again_s != AGAIN_S)


def _by_shard(ids: Sequence[str]) -> dict[ShardNo, list[str]]:
    parts: dict[ShardNo, list[str]] = {}
    for item_id in ids:
        parts.setdefault(shard_of(item_id), []).append(item_id)
    return parts


def _up_to(keys: Sequence[Key], lanes: Mapping[str, str | None]) -> list[Key]:
    """As many of these, from the first, as have no more keys than are gone through at once."""
    met: set[str] = set()
    found = []
    for key in keys:
        met.add(lanes.get(key.id) or "")
        if len(met) > KEYS_AT_ONCE_MAX:
            break
        found.append(key)
    return found


async def _keep(tx: Transaction, pair: Pair, gates: Sequence[_KeyGate], map_version: int) -> None:
    if gates:
        await rows.keep_keys(tx, *pair, [gate.kept(map_version) for gate in gates])
