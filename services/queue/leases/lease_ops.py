"""The verbs that give back, hold on to, or end items: nack, extend, cancel, and what time does to leases.

Each is one transaction per shard that first takes the membership rows, then the item rows, decides here, and
writes; the same few decisions serve a consumer's nack and a lease that ran out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from services.queue.leases import failed_attempts
from services.queue.leases.acks import lost_status
from services.queue.leases.broker import Broker, answered
from services.queue.model import Ready, Result, backoff_s, refused
from services.queue.settings import QueueSettings
from services.queue.store import shard_store as rows
from services.queue.store.names import SQL
from services.queue.store.shard_store import Holding, Removal, Requeue, Store, SweepBounds
from shared.admission.connection_priority import Urgency
from shared.errors import Invalid, Unavailable, something_done
from shared.http.access import Caller
from shared.ids import canonical, canonical_token, shard_of, time_ms_of
from shared.log import log
from shared.metrics import DEAD, LEASE_EXPIRED, NACKED
from shared.postgres.connections import Transaction

LOOKS_MAX = 5
PUT_OFF_S = 60.0

_REFUSALS = ("cancel_limit", "id_in_future")
_PAST_TTL = "its time to live passed"


class Nack(NamedTuple):
    """One element of a nack call."""

    id: str
    lease_token: str
    delay_s: float | None
    metadata: str | None
    error: str | None
    final: bool
    costs_attempt: bool


class Extension(NamedTuple):
    """One element of an extend call."""

    id: str
    lease_token: str
    lease_s: float | None


class Settlement:
    """Nack, extend and cancel, and the sweeps that do the same in nobody's name."""

    def __init__(self, broker: Broker, settings: QueueSettings) -> None:
        self._broker = broker
        self._settings = settings
        self.dispatch = broker.dispatch

    async def nack(self, namespace: str, items: Sequence[Nack]) -> list[Result]:
        """Give leased items back, or fail them for good; one result per item."""
        return await self._held(namespace, items, self._nack_at)

    async def extend(self, namespace: str, items: Sequence[Extension]) -> list[Result]:
        """Let the leases of these items end `lease_s` from now; one result per item."""
        return await self._held(namespace, items, self._extend_at)

    async def cancel(self, namespace: str, ids: Sequence[str], caller: Caller) -> list[Result]:
        """End items, or see to it that ids not seen yet never begin; one result per id."""
        results: list[Result] = [Result(item_id, "not_found") for item_id in ids]
        groups: dict[int, list[int]] = {}
        for i, item_id in enumerate(ids):
            known_id = canonical(item_id)
            if known_id is not None and shard_of(known_id) in self._broker.stores:
                groups.setdefault(shard_of(known_id), []).append(i)

        async def at(shard: int, part: list[int]) -> None:
            store = self._broker.stores[shard]
            wanted = [canonical(ids[i]) or "" for i in part]
            try:
                store.pool.admit()
                namespace_id = await store.names.make_namespace(namespace)
                statuses = await Cancel(store, self._settings, namespace_id, caller.is_dag_service).run(wanted)
            except Unavailable as error:
                for i in part:
                    results[i] = refused(ids[i], error.code, error.outcome)
                return
            self._broker.dispatch.ready(shard, statuses.completions)
            named: set[str] = set()
            for i, item_id in zip(part, wanted, strict=True):
                status = statuses.by_id[item_id]
                if status == "cancelled" and item_id in named:
                    status = "already_cancelled"
                named.add(item_id)
                results[i] = refused(ids[i], status) if status in _REFUSALS else Result(ids[i], status)

        await asyncio.gather(*(at(shard, part) for shard, part in groups.items()))
        return answered(results, Urgency.SETTLE)

    async def sweep(self, store: Store, bounds: SweepBounds) -> Swept:
        """Take back leases of one shard that ran out.

        Raises:
            Invalid: the database refuses to take one of several items back. One that is refused alone keeps its
                lease a while longer, so that it holds up no other.
        """
        try:
            swept = await store.pool.transaction(lambda tx: self._sweep(tx, bounds))
        except Invalid:
            if bounds.items_max > 1:
                raise
            swept = await store.pool.transaction(lambda tx: _put_off(tx, bounds))
        LEASE_EXPIRED.labels(store.number).inc(swept.expired)
        self._broker.dispatch.ready(store.number, swept.ready)
        await self._broker.dispatch.place_lanes(store.number)
        return swept

    async def expire(self, store: Store, ids: Sequence[str]) -> int:
        """End items whose TTL has passed, of those that are not leased; how many that were."""

        async def work(tx: Transaction) -> tuple[int, list[Ready]]:
            left = await tx.fetch(SQL.leave_past_ttl, ids=list(ids))
            past = [Removal(row["id"], "expired", row["state"], why=_PAST_TTL) for row in left]
            ready = await rows.remove(tx, past)
            return len(left), ready

        try:
            expired, ready = await store.pool.transaction(work)
        except Invalid:
            if len(ids) == 1:
                log.error("an item past its TTL cannot be ended", shard=store.number, item=ids[0])
                return 0
            return sum([await self.expire(store, [item_id]) for item_id in ids])
        self._broker.dispatch.ready(store.number, ready)
        return expired

    async def _expire_now(self, store: Store, ids: Sequence[str]) -> None:
        """As `expire`, for items that have just been given back. What fails is left to the reaper's next walk."""
        with suppress(Unavailable):
            await self.expire(store, ids)

    async def _held(
        self,
        namespace: str,
        items: Sequence[Any],
        act: Callable[[Store, int, list[Any]], Awaitable[dict[int, str]]],
    ) -> list[Result]:
        results = [Result(item.id, "not_found") for item in items]
        groups: dict[int, list[tuple[int, Any]]] = {}
        for i, item in enumerate(items):
            known_id = canonical(item.id)
            if known_id is None or shard_of(known_id) not in self._broker.stores:
                continue
            token = canonical_token(item.lease_token) or "00000000-0000-0000-0000-000000000000"
            entry = item._replace(id=known_id, lease_token=token)
            groups.setdefault(shard_of(known_id), []).append((i, entry))

        async def at(shard: int, part: list[tuple[int, Any]]) -> None:
            store = self._broker.stores[shard]
            try:
                store.pool.admit()
                namespace_id = await store.names.namespace_id(namespace)
                if namespace_id is None:
                    return
                statuses = await act(store, namespace_id, [entry for _, entry in part])
            except Unavailable as error:
                for i, _ in part:
                    results[i] = refused(items[i].id, error.code, error.outcome)
                return
            for position, (i, _) in enumerate(part):
                results[i].status = statuses[position]

        await asyncio.gather(*(at(shard, part) for shard, part in groups.items()))
        return answered(results, Urgency.SETTLE)

    async def _nack_at(self, store: Store, namespace_id: int, nacks: list[Nack]) -> dict[int, str]:
        async def work(tx: Transaction) -> tuple[dict[int, str], list[Ready], list[str]]:
            held, items, holdings = await _lock_held(tx, namespace_id, nacks)
            back: list[Requeue] = []
            dead: list[Requeue] = []
            statuses: dict[int, str] = {}
            for position in held:
                nack = nacks[position]
                item = items[nack.id]
                row = _given_back(nack, item)
                is_dead = nack.final or item["at_most_once"] or (nack.costs_attempt and _is_last(item))
                (dead if is_dead else back).append(row)
                statuses[position] = "dead" if is_dead else "requeued"
            pairs = [(nacks[position].lease_token, nacks[position].id) for position in held]
            if pairs:
                await rows.leave_groups(tx, pairs)
            ended = [(row, "failed") for row in back if row.cost] + [(row, "dead") for row in dead]
            await failed_attempts.log(tx, ended, items, holdings, self._settings.logged_attempts_max)
            ready = await rows.requeue(tx, back)
            ready += await rows.bury(tx, dead)
            DEAD.labels(store.number).inc(len(dead))
            return statuses, ready, [row.id for row in back if items[row.id]["ttl_passed"]]

        statuses, ready, past_ttl = await store.pool.transaction(work)
        NACKED.labels(store.number).inc(len(statuses))
        if past_ttl:
            await self._expire_now(store, past_ttl)
        self._broker.dispatch.ready(store.number, ready)
        await self._broker.dispatch.place_lanes(store.number)
        with something_done():
            return statuses | await _lost(store, namespace_id, nacks, statuses)

    async def _extend_at(self, store: Store, namespace_id: int, extensions: list[Extension]) -> dict[int, str]:
        async def work(tx: Transaction) -> dict[int, str]:
            held, items, holdings = await _lock_held(tx, namespace_id, extensions)
            leases = {(extensions[position].lease_token, extensions[position].id) for position in held}
            named = [i for i, wanted in enumerate(extensions) if (wanted.lease_token, wanted.id) in leases]
            # Of a lease that is named twice the last word counts.
            wanted_s = {extensions[i].id: extensions[i].lease_s for i in named}
            again = []
            for token, item_id in sorted(leases):
                item, lease_s = items[item_id], wanted_s[item_id]
                lease_s = item["lease_s"] if lease_s is None else lease_s
                again.append((token, lease_s, namespace_id, item["topic_id"], item_id, holdings[item_id]))
            if again:
                await rows.leave_groups(tx, sorted(leases))
                await rows.lease_again(tx, again)
            return dict.fromkeys(named, "extended")

        statuses = await store.pool.transaction(work)
        with something_done():
            return statuses | await _lost(store, namespace_id, extensions, statuses)

    async def _sweep(self, tx: Transaction, bounds: SweepBounds) -> Swept:
        groups = await rows.take_expired(tx, bounds)
        holdings = {item_id: _holding(group) for group in groups for item_id in group["ids"]}
        items = await rows.lock_items(tx, list(holdings)) if holdings else {}
        acked = [
            (item_id, group["namespace_id"])
            for group in groups
            for item_id in group["ids"]
            if item_id not in items
        ]
        if acked:  # between the look of `take_expired` and its lock
            await rows.remember_acked(tx, *zip(*acked, strict=True))
        return Swept(len(items), await self._take_back(tx, items, holdings), *_reach(groups))

    async def _take_back(
        self, tx: Transaction, items: Mapping[str, Any], holdings: Mapping[str, Holding]
    ) -> list[Ready]:
        """What becomes of items whose leases ran out: deliverable again, dead or expired."""
        back, dead, gone = [], [], []
        for item_id, item in items.items():
            if not holdings[item_id].was_shown:
                gone.append(Removal(item_id, "expired", "leased", why=_PAST_TTL))
            elif item["at_most_once"]:
                gone.append(Removal(item_id, "expired", "leased", 1, "the lease of its only delivery ran out"))
            elif item["ttl_passed"]:
                gone.append(Removal(item_id, "expired", "leased", 1, _PAST_TTL))
            elif _is_last(item):
                dead.append(Requeue(item_id, 1, 0, "the lease ran out on the last attempt"))
            else:
                back.append(Requeue(item_id, 1, _pause_s(item)))
        ended = [(row, "lease_expired") for row in (*back, *dead)]
        await failed_attempts.log(tx, ended, items, holdings, self._settings.logged_attempts_max)
        ready = await rows.requeue(tx, back)
        ready += await rows.bury(tx, dead)
        return ready + await rows.remove(tx, gone)


class Cancelled(NamedTuple):
    """What became of each id, and the completions of those that ended."""

    by_id: dict[str, str]
    completions: list[Ready]


class Cancel:
    """One call's cancels on one shard."""

    def __init__(self, store: Store, settings: QueueSettings, namespace_id: int, may_manage: bool) -> None:
        self._store = store
        self._settings = settings
        self._namespace_id = namespace_id
        self._may_manage = may_manage

    async def run(self, ids: Sequence[str]) -> Cancelled:
        """Cancel the living; place tombstones for the unseen; look again where the two cross."""
        unique = list(dict.fromkeys(ids))
        statuses: dict[str, str] = {}
        completions: list[Ready] = []
        await self._look(unique, statuses, completions)
        with something_done():
            for _ in range(LOOKS_MAX - 1):
                rest = [item_id for item_id in unique if item_id not in statuses]
                if not rest:
                    break
                await self._look(rest, statuses, completions)
        statuses |= {item_id: "not_found" for item_id in unique if item_id not in statuses}
        return Cancelled(statuses, completions)

    async def _look(self, ids: list[str], statuses: dict[str, str], completions: list[Ready]) -> None:
        found, ready = await self._store.pool.transaction(lambda tx: self._living(tx, ids))
        completions += ready
        statuses |= found
        with something_done():
            statuses |= await self._ended([item_id for item_id in ids if item_id not in statuses])
            unseen = [item_id for item_id in ids if item_id not in statuses]
            if unseen:
                statuses |= await self._unseen(unseen)

    async def _living(self, tx: Transaction, ids: list[str]) -> tuple[dict[str, str], list[Ready]]:
        states = {row["id"]: row for row in await tx.fetch(SQL.states, ids=ids)}
        mine: list[str] = []
        statuses: dict[str, str] = {}
        for item_id, row in states.items():
            if row["namespace_id"] != self._namespace_id:
                statuses[item_id] = "not_found"
            elif row["managed"] and not self._may_manage:
                statuses[item_id] = "managed"
            elif row["state"] == "dead" and not row["managed"]:
                statuses[item_id] = "finished"
            else:
                mine.append(item_id)
        left = await rows.leave_queues(tx, mine)
        # What was in none of the three is leased, or on its way between tables: hold its row, look again.
        rest = [item_id for item_id in mine if item_id not in left]
        locked = await rows.lock_items(tx, rest) if rest else {}
        if locked:
            left |= await rows.leave_queues(tx, list(locked))
        dead = {item_id for item_id, state in left.items() if state == "dead"}
        removals = [
            Removal(item_id, "cancelled", left.get(item_id, "leased"))
            for item_id in sorted({*left, *locked} - dead)
        ]
        statuses |= {removal.id: "cancelled" for removal in removals}
        # A DAG's dead item is of no more use once its DAG lets go of it, and its end stays what it was.
        superseded = {item_id for item_id in dead if states[item_id]["managed"]}
        removals += [Removal(item_id, "dead", "dead") for item_id in sorted(superseded)]
        if dead - superseded:
            # It died between the look and the lock; its place among the dead is given back.
            await tx.fetch(SQL.park_dead, ids=sorted(dead - superseded))
        ready = await rows.remove(tx, removals)
        return statuses | dict.fromkeys(dead, "finished"), ready

    async def _ended(self, ids: list[str]) -> dict[str, str]:
        if not ids:
            return {}
        found = await self._store.known(ids)
        unknown = [item_id for item_id in ids if item_id not in found]
        if unknown:
            found |= await self._store.acked_lately(unknown)
            # What a sweep has taken out of its group between these two is in `ended` by now.
            unknown = [item_id for item_id in unknown if item_id not in found]
            found |= await self._store.known(unknown) if unknown else {}
        statuses: dict[str, str] = {}
        for item_id, known in found.items():
            if known.namespace_id != self._namespace_id:
                statuses[item_id] = "not_found"
            elif known.outcome == "cancelled":
                statuses[item_id] = "already_cancelled"
            elif known.outcome != "living":
                statuses[item_id] = "finished"
        return statuses

    async def _unseen(self, ids: list[str]) -> dict[str, str]:
        oldest_ms = await self._store.time_ms() - int(self._settings.id_window_s * 1000)
        newest_ms = oldest_ms + int((self._settings.id_window_s + self._settings.id_ahead_s_max) * 1000)
        young = [item_id for item_id in ids if oldest_ms <= time_ms_of(item_id) <= newest_ms]
        statuses = {
            item_id: "not_found" if time_ms_of(item_id) < oldest_ms else "id_in_future"
            for item_id in ids
            if item_id not in young
        }
        if not young:
            return statuses
        cap = 2**31 - 1 if self._may_manage else self._settings.unseen_cancels_max

        async def work(tx: Transaction) -> dict[str, str]:
            placed = [
                row["id"]
                for row in await tx.fetch(
                    SQL.place_tombstones, ids=young, namespace_ids=[self._namespace_id] * len(young)
                )
            ]
            charged = await tx.row(
                SQL.charge_tombstones, namespace_id=self._namespace_id, cancels=len(placed), cancels_max=cap
            )
            if placed and charged is None:
                await tx.fetch(SQL.take_up_tombstones, ids=placed)
                return dict.fromkeys(placed, "cancel_limit")
            await tx.fetch(SQL.bury_tombstones, ids=placed)
            return dict.fromkeys(placed, "cancelled")

        return statuses | await self._store.pool.transaction(work)


class Swept(NamedTuple):
    """What a sweep took back, what of it is ready now, how many ids it took out of groups (most were acked), and
    whose group was the last."""

    expired: int
    ready: list[Ready]
    ids: int
    last_namespace_id: int


def _reach(groups: Sequence[Any]) -> tuple[int, int]:
    return sum(group["ids_taken"] for group in groups), groups[-1]["namespace_id"] if groups else 0


async def _put_off(tx: Transaction, bounds: SweepBounds) -> Swept:
    groups = await rows.take_expired(tx, bounds)
    for group in groups:
        for item_id in group["ids"]:
            log.error("an item whose lease ran out cannot be taken back", item=item_id)
            where = (group["namespace_id"], group["topic_id"], item_id, _holding(group))
            await rows.lease_again(tx, [(group["token"], PUT_OFF_S, *where)])
    return Swept(0, [], *_reach(groups))


async def _lock_held(
    tx: Transaction, namespace_id: int, entries: Sequence[Any]
) -> tuple[list[int], dict[str, Any], dict[str, Holding]]:
    """Lock the groups and item rows behind (id, token) entries; positions that are truly held, once each, and
    since when by whom."""
    found: dict[str, dict[int, Holding]] = {}
    for _ in range(2):
        # Twice where one is missing: an extend of the same holder may have moved its lease while this waited.
        groups = await rows.lock_groups(tx, [entry.lease_token for entry in entries])
        for position, entry in enumerate(entries):
            for group in groups.get(entry.lease_token, ()):
                if group.namespace_id == namespace_id and entry.id in group.ids:
                    found.setdefault(entry.id, {})[position] = group.holding
        if all(entry.id in found for entry in entries):
            break
    items = await rows.lock_items(tx, list(found)) if found else {}
    held: list[int] = []
    holdings: dict[str, Holding] = {}
    for item_id, item in items.items():
        for position, holding in sorted(found[item_id].items()):
            if item_id not in holdings and _is_of(item, holding):
                held.append(position)
                holdings[item_id] = holding
    return held, items, holdings


def _is_of(item: Any, holding: Holding) -> bool:
    """Whether a lease that names an item's id is the item's.

    One that its caller named, and enqueued after the claim, is another under the id of one that was acked.
    """
    return not item["remembered"] or item["managed"] or item["enqueued_at"] <= holding.claimed_at


async def _lost(
    store: Store, namespace_id: int, entries: Sequence[Any], statuses: dict[int, str]
) -> dict[int, str]:
    lost = [position for position in range(len(entries)) if position not in statuses]
    if not lost:
        return {}
    known = await store.known([entries[position].id for position in lost])
    return {position: lost_status(known.get(entries[position].id), namespace_id) for position in lost}


def _holding(group: Any) -> Holding:
    return Holding(group["claimed_at"], group["worker"], group["was_shown"])


def _is_last(item: Any) -> bool:
    return bool(item["max_attempts"]) and item["attempts"] + 1 >= item["max_attempts"]


def _pause_s(item: Any) -> float:
    """How long an item waits that this delivery has failed."""
    return backoff_s(item["attempts"] + 1, item["backoff"], random.random())  # noqa: S311 (spreads load)


def _given_back(nack: Nack, item: Any) -> Requeue:
    cost = 1 if nack.costs_attempt else 0
    pause_s = _pause_s(item) if cost else 0.0
    delay_s = pause_s if nack.delay_s is None else nack.delay_s
    return Requeue(item["id"], cost, delay_s, nack.error, nack.metadata)
