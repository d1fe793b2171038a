"""Namespaces, topics and pages of items; pause, resume, purge and redrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.gates.limits import TopicLimits
from services.queue.gates.topic_gates import Gates
from services.queue.keys.key_buffer import START
from services.queue.keys.priority_shares import Shares, shares_of
from services.queue.model import EARLIEST, TopicId
from services.queue.operations.agreement import Agreement
from services.queue.operations.bulk import Operations
from services.queue.operations.listing import Part, cut, merge
from services.queue.operations.topic_states import (
    LimitsState,
    NamespaceState,
    OperationRef,
    Share,
    ThrottledKey,
    TopicChange,
    TopicStats,
)
from services.queue.quotas import Quota, Quotas, Use, quota_of, uses
from services.queue.settings import QueueSettings
from services.queue.store import items, leases, topics
from services.queue.store.items import ItemRow, PageOf
from services.queue.store.leases import ItemLease
from services.queue.store.shard_store import Store, living, refuse_if_standing, store_of
from services.queue.store.topics import NamespaceRow, TopicCounts
from shared.errors import NotFound, Unavailable
from shared.ids import ShardNo, canonical
from shared.shards.asking import Answers, Listed, ask_all

FIRST_ID = START[2]
# So many throttles of a topic are shown, itself and keys.
THROTTLES_MAX = 101


class OnShard(NamedTuple):
    """A topic as one shard has it."""

    shard: ShardNo
    topic: TopicCounts


class ShownItem(NamedTuple):
    """An item, and the lease that holds it, if one does."""

    item: ItemRow
    lease: ItemLease | None


class Topics:
    """What people and operators ask about, over all shards."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        dispatch: Dispatch,
        operations: Operations,
        quotas: Quotas,
        agreement: Agreement,
        gates: Gates,
        settings: QueueSettings,
    ) -> None:
        self._dispatch = dispatch
        self._agreement = agreement
        self._gates = gates
        self._operations = operations
        self._quotas = quotas
        self._stores = stores
        self._settings = settings
        # One after another: what was asked first must not come last, and stand.
        self._reading = asyncio.Lock()

    # -- namespaces ---------------------------------------------------------------------------------------

    async def set_namespace(self, namespace: str, quota: Quota) -> NamespaceState:
        """Declare a namespace on every shard and give it this quota."""
        refuse_if_standing(self._all())
        given = {name: limit for name, limit in quota._asdict().items() if limit is not None}
        await self._agreement.set_namespace(namespace, json.dumps(given, sort_keys=True))
        await self._quotas.step()
        return await self.namespace(namespace)

    async def namespaces(
        self, limit: int, after: str, allowed: frozenset[str] | None
    ) -> Listed[NamespaceState, str]:
        """A page of the namespaces that any shard knows, but the system's, behind a name.

        `allowed`: no others (None: all).
        """
        if allowed is not None:
            mine = sorted(name for name in allowed if name > after and not name.startswith("_"))
            names, rest = cut(mine, limit, None)
            described = await self._described(names)
            return Listed(described.parts, rest, described.away)

        async def at(store: Store) -> Part[None]:
            store.pool.admit()
            found = await topics.namespace_names(store.pool, after, limit + 1)
            return Part(dict.fromkeys(found), found[limit] if len(found) > limit else None)

        answers = await ask_all(self._all(), at)
        merged, horizon = await merge(answers.parts)
        names, rest = cut(list(merged), limit, horizon)
        described = await self._described(names)
        return Listed(described.parts, rest, sorted({*answers.away, *described.away}))

    async def namespace(self, namespace: str) -> NamespaceState:
        """One namespace; one that was never used is empty."""
        found, away = await self._described([namespace])
        state = found[0] if found else self._state(namespace, Quota(), Use())
        return msgspec.structs.replace(state, away=away) if away else state

    async def _described(self, names: Sequence[str]) -> Answers[NamespaceState]:
        """Those of these namespaces that any shard knows, with settings and use."""

        async def at(store: Store) -> list[tuple[NamespaceRow, Use]]:
            store.pool.admit()
            known = await topics.namespaces(store.pool, names)
            used = await uses(store, [row.namespace_id for row in known])
            return [(row, used.get(row.namespace_id, Use())) for row in known]

        newest: dict[str, tuple[datetime, str]] = {}
        sums: dict[str, Use] = {}
        parts, away = await ask_all(self._all(), at)
        for part in parts:
            for row, use in part:
                given = (row.set_at or EARLIEST, row.settings)
                newest[row.name] = max(given, newest.get(row.name, given))
                sums[row.name] = sums.get(row.name, Use()).plus(use)
        known = [self._state(name, quota_of(newest[name][1]), sums[name]) for name in names if name in sums]
        return Answers(known, away)

    def _state(self, namespace: str, quota: Quota, use: Use) -> NamespaceState:
        tenant = self._quotas.of(namespace)
        enqueued = None if tenant is None else tenant.accepted_last_minute()
        return NamespaceState(namespace, *quota, enqueued, use.leased, use.items, use.bytes)

    # -- topics -------------------------------------------------------------------------------------------

    async def active(self, namespace: str, limit: int, after: str) -> Listed[TopicStats, str]:
        """A page of the topics of a namespace, behind a name, that hold items or are paused, with their counts.

        A page looks at a bounded number of topics, so it may hold fewer than `limit`, or none, and have a next.
        """
        scan_max = max(self._settings.topics_scan_max, limit + 1)
        parts, away = await self._counted(namespace, after, limit + 1, scan_max)
        merged, horizon = await merge(parts)
        names, rest = cut(list(merged), limit, horizon)
        return Listed(await self._told(namespace, {name: merged[name] for name in names}), rest, away)

    async def active_one(self, namespace: str, topic: str) -> Listed[TopicStats, str]:
        """A topic, if it holds items or is paused: as a page of it alone, at the cost of one."""
        parts, away = await self._counted(namespace, _just_before(topic), 1, 1)
        rows = [part.rows[topic] for part in parts if topic in part.rows]
        return Listed(await self._told(namespace, {topic: rows} if rows else {}), None, away)

    async def _counted(self, namespace: str, after: str, limit: int, scan_max: int) -> Answers[Part[OnShard]]:
        async def at(store: Store) -> Part[OnShard]:
            store.pool.admit()
            found, horizon = await topics.topics_page(store.pool, namespace, after, limit, scan_max)
            return Part({topic.name or "": OnShard(store.number, topic) for topic in found}, horizon)

        return await ask_all(self._all(), at)

    async def _told(self, namespace: str, rows: Mapping[str, Sequence[OnShard]]) -> list[TopicStats]:
        ages = await self._ages([row for held in rows.values() for row in held])
        shares = self._dispatch.shares
        return [_topic(name, held, ages, shares.get((namespace, name), ())) for name, held in rows.items()]

    async def _ages(self, rows: Sequence[OnShard]) -> dict[tuple[int, int], float]:
        """How long the oldest item of each topic with ready ones has been ready, by shard and number."""
        live: dict[ShardNo, list[TopicId]] = {}
        for row in rows:
            if row.topic.ready:
                live.setdefault(row.shard, []).append(row.topic.topic_id or TopicId(0))

        async def at(store: Store) -> dict[tuple[int, int], float]:
            found = await store.ready_ages.read(live[store.number])
            return {(store.number, topic_id): age_s for topic_id, age_s in found.items()}

        parts, _ = await ask_all([store for store in self._all() if store.number in live], at)
        return {place: age_s for part in parts for place, age_s in part.items()}

    async def pause(self, namespace: str, topic: str, paused: bool) -> TopicChange:
        """Stop or go on handing out a topic's items; on every shard, so that it holds for what comes."""
        refuse_if_standing(self._all())
        await self._agreement.pause(namespace, topic, paused)
        self._dispatch.changed(namespace, topic)
        return TopicChange(topic, paused, 0)

    async def configure(self, namespace: str, topic: str, shares: Shares) -> None:
        """Give a topic minimum shares (none: take them away), on every shard; in force here at once."""
        refuse_if_standing(self._all())
        await self._agreement.set_min_share(namespace, topic, json.dumps(shares) if shares else "")
        await self.read_shares()

    async def limit(self, namespace: str, topic: str, limits: TopicLimits) -> LimitsState:
        """Give a topic limits (none: take them away), on every shard; in force here at once."""
        refuse_if_standing(self._all())
        await self._agreement.set_limits(namespace, topic, limits.text() if limits.are_set else "")
        await self._gates.read()
        self._dispatch.forget(namespace, topic)
        return await self._limited(namespace, topic, limits)

    async def limits(self, namespace: str, limit: int, after: str) -> tuple[list[LimitsState], str | None]:
        """A page of the topics that have limits, and where the next begins."""
        known = self._gates.limits
        mine = sorted(topic for name, topic in known if name == namespace and topic > after)
        names, rest = cut(mine, limit, None)
        found = [await self._limited(namespace, name, known[namespace, name]) for name in names]
        return [one for one in found if one.holds_back], rest

    async def limits_of(self, namespace: str, topic: str) -> list[LimitsState]:
        """Those of one topic, if it has any or is throttled."""
        known = self._gates.limits.get((namespace, topic))
        found = [] if known is None else [await self._limited(namespace, topic, known)]
        return [one for one in found if one.holds_back]

    async def unthrottle(self, namespace: str, topic: str, key: str | None) -> LimitsState:
        """End the throttles of a topic and its keys, or of one key; here at once."""
        await self._gates.lift(namespace, topic, key)
        self._dispatch.forget(namespace, topic)
        return await self._limited(namespace, topic, self._gates.limits.get((namespace, topic), TopicLimits()))

    async def _limited(self, namespace: str, topic: str, limits: TopicLimits) -> LimitsState:
        in_flight = await self._gates.in_flight(namespace, topic)
        throttles = {
            one.key: one.slow_until for one in await self._gates.throttles(namespace, topic, THROTTLES_MAX)
        }
        until = throttles.pop("", None)
        keys = [ThrottledKey(key, until) for key, until in throttles.items()]
        return LimitsState(topic, *limits, in_flight, until, keys)

    @property
    def knows_shares(self) -> bool:
        """Whether any were there at the last look."""
        return bool(self._dispatch.shares)

    async def read_shares(self) -> None:
        """Learn the minimum shares that other processes have set."""
        async with self._reading:
            newest: dict[tuple[str, str], tuple[datetime, Shares]] = {}
            for part in (await ask_all(self._all(), _shares)).parts:
                for pair, found in part.items():
                    newest[pair] = max(found, newest.get(pair, found))
            self._dispatch.set_shares({pair: shares for pair, (_, shares) in newest.items()})

    async def purge(self, namespace: str, topic: str) -> TopicChange:
        """Cancel every item that the topic holds now, in any state; a DAG's items are left alone."""
        return await self._operate(namespace, "purge", topic)

    async def redrive(self, namespace: str, topic: str) -> TopicChange:
        """Put the topic's dead items back, with fresh attempts; a DAG's are retried in the DAG instead."""
        return await self._operate(namespace, "redrive", topic)

    async def _operate(self, namespace: str, kind: str, topic: str) -> TopicChange:
        made = await self._operations.start(namespace, kind, {"topic": topic})
        return TopicChange(topic, False, made["changed"], OperationRef(made["id"], made["state"]))

    # -- items --------------------------------------------------------------------------------------------

    async def item(self, namespace: str, item_id: str) -> ShownItem:
        """An item that has not ended.

        Raises:
            NotFound: ended, never seen, or another namespace's.
        """
        known_id = canonical(item_id)
        store = store_of(self._stores, known_id)
        row = None
        if store is not None:
            store.pool.admit()
            row = await items.item(store.pool, known_id or "")
        if row is None or store is None or row.namespace != namespace:
            raise NotFound("there is no such item here; an item is gone once it has ended")
        [found] = await _with_leases(store, [row])
        return found

    async def page(
        self, namespace: str, topic: str | None, state: str | None, limit: int, after: tuple[int, str]
    ) -> Listed[ShownItem, tuple[int, str]]:
        """A page of items in order of shard and id.

        `after` is (shard, id). A shard that does not answer is passed over, unless no other is left. A page looks
        at a bounded number of rows, and holds a bounded number of bytes, so it may hold fewer than `limit` items,
        or none, and still have a next.
        """
        found: list[ShownItem] = []
        away: list[ShardNo] = []
        refusal: Unavailable | None = None
        shard, after_id = after
        scan_max, bytes_left = self._settings.page_scan_max, self._settings.answer_bytes_max
        stores = sorted((store for store in self._all() if store.number >= shard), key=lambda store: store.number)
        for store in stores:
            start = after_id if store.number == shard else FIRST_ID
            wanted = PageOf(namespace, topic, state, start, limit - len(found), scan_max, bytes_left)
            try:
                store.pool.admit()
                end = await items.page_end(store.pool, start, scan_max)
                part = await items.page(store.pool, wanted)
                found += await _with_leases(store, part.items)
            except Unavailable as unavailable:
                away.append(store.number)
                refusal = unavailable
                continue
            bytes_left -= part.bytes
            # The next shard would give one item at least, whatever is left.
            if len(found) >= limit or part.is_cut or bytes_left < self._settings.answer_bytes_max // 2:
                return Listed(found, (store.number, found[-1].item.id_text), away)
            if end is not None:
                return Listed(found, (store.number, end), away)
        if refusal is not None and len(away) == len(stores):
            raise refusal
        return Listed(found, None, away)

    def _all(self) -> list[Store]:
        return living(self._stores)


async def _with_leases(store: Store, rows: Sequence[ItemRow]) -> list[ShownItem]:
    held = await leases.leases_of(store.pool, [row.id_text for row in rows if row.state == "leased"])
    return [ShownItem(row, held.get(row.id_text)) for row in rows]


def _just_before(topic: str) -> str:
    """Behind this no name comes before the topic's: names are ordered by their bytes, and end before U+10FFFF."""
    return f"{topic[:-1]}{chr(ord(topic[-1]) - 1)}\U0010ffff"


async def _shares(store: Store) -> dict[tuple[str, str], tuple[datetime, Shares]]:
    found = {row.topic_id: row for row in await topics.min_shares(store.pool)}
    names = await store.names.name_of(found) if found else {}
    return {
        pair: (found[topic_id].min_share_at, shares_of(json.loads(found[topic_id].min_share)))
        for topic_id, pair in names.items()
    }


def _topic(
    topic: str, rows: Sequence[OnShard], ages: Mapping[tuple[int, int], float], shares: Shares
) -> TopicStats:
    """One topic from its rows by shard."""
    held = [row.topic for row in rows]
    known = (ages.get((row.shard, row.topic.topic_id or 0)) for row in rows)
    return TopicStats(
        topic,
        ready=sum(part.ready for part in held),
        delayed=sum(part.delayed for part in held),
        leased=sum(part.leased for part in held),
        disabled=sum(part.disabled for part in held),
        dead=sum(part.dead for part in held),
        oldest_ready_age_s=max((age_s for age_s in known if age_s is not None), default=None),
        paused=any(part.paused for part in held),
        min_share=[Share(priority, share) for priority, share in shares] or None,
    )
