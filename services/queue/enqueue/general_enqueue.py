"""Enqueue calls that say more than a topic and a payload: ids, keys, affinities, delays, disabled items.

Every id may have come before, and have ended since; so a flush asks what became of those that it did not take.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeAlias

from prometheus_client import Counter

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.item_rows import ack_pair, fingerprint, new_rows, texts_of
from services.queue.enqueue.placement import Placement
from services.queue.model import Key, NamespaceId, NewItem, NewRow, Result, TopicId, refused
from services.queue.settings import QueueSettings
from services.queue.store.enqueue import Enqueued
from services.queue.store.shard_store import Known, Store
from shared.admission.connection_priority import Urgency
from shared.errors import ShardUnavailable, Unavailable, invalid, something_done
from shared.http.access import Caller
from shared.ids import ShardNo, are_canonical, canonical, new_id, new_ids, one_shard_of, shard_of
from shared.metrics import ENQUEUED
from shared.postgres.batcher import Batcher
from shared.shards.map_file import slot_of
from shared.shards.shard_map import ShardMap

# Which items of a call, by their shards.
_Parts: TypeAlias = Mapping[ShardNo, Sequence[int]]

# How long a call that goes to several shards waits for what time it is at one of them.
TIME_WAIT_S = 0.5


class _Call(NamedTuple):
    """One call: its items, their ids and, as they come, their results."""

    namespace: str
    items: list[NewItem]
    ids: list[str]
    caller: Caller
    results: list[Result | None]
    as_of: datetime | None = None

    def refuse(self, part: Sequence[int], error: Unavailable) -> None:
        """These were not taken."""
        for i in part:
            self.results[i] = refused(self.ids[i], error.code, error.outcome)


class GeneralEnqueues:
    """Takes such items in."""

    def __init__(
        self, shards: ShardMap, dispatch: Dispatch, placement: Placement, settings: QueueSettings
    ) -> None:
        self._shards = shards
        self._dispatch = dispatch
        self._placement = placement
        self._settings = settings
        self._stores: dict[ShardNo, Store] = {}
        self._enqueued: dict[ShardNo, Counter] = {}
        self.flushes: dict[ShardNo, Batcher[NewRow, Result]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        limits = self._settings.flush_limits
        self._enqueued[store.number] = ENQUEUED.labels(store.number)
        self.flushes[store.number] = Batcher(partial(self.flush, store), limits, Urgency.ENQUEUE, store.pool)
        self._stores[store.number] = store

    async def enqueue(self, namespace: str, items: list[NewItem], caller: Caller) -> list[Result]:
        """Take items in; one result per item, in order."""
        ids, groups, keyed = self._placed(namespace, items)
        call = _Call(namespace, items, ids, caller, [None] * len(items))
        if len(groups) + len(keyed) > 1 and not caller.is_dag_service:
            call = call._replace(as_of=await self._as_of({*groups, *keyed}))
        flushes = [
            *(self._enqueue_at(shard, call, part) for shard, part in groups.items()),
            *(self._keyed_at(shard, call, part) for shard, part in keyed.items()),
        ]
        if len(flushes) == 1:
            await flushes[0]
        else:
            await asyncio.gather(*flushes)
        return [result for result in call.results if result is not None]

    def _placed(self, namespace: str, items: Sequence[NewItem]) -> tuple[list[str], _Parts, _Parts]:
        """Ids of items, and which are to go to which shard: without an idempotency key, and with one."""
        named = [item.id for item in items if item.id is not None]
        if len(named) == len(items) and are_canonical(named):
            only = one_shard_of(named)
            if only is not None and only in self._stores:
                return named, {only: range(len(named))}, {}
        home: Store | None = None
        groups: dict[ShardNo, list[int]] = {}
        keyed: dict[ShardNo, list[int]] = {}
        ids: list[str] = []
        for i, item in enumerate(items):
            if item.id is not None:
                item_id = canonical(item.id) or item.id
                ids.append(item_id)
                shard = shard_of(item_id)
                if shard not in self._stores:
                    raise invalid(f"/items/{i}/id", "its last 12 bits are no shard of this service")
                groups.setdefault(shard, []).append(i)
                continue
            parts = groups
            if item.idempotency_key is not None:
                store, parts = self._at(namespace, item.idempotency_key), keyed
            elif item.affinity is not None:
                store = self._at(namespace, item.affinity)
            else:
                home = home or self._stores[self._placement.choose(namespace, item.topic, len(items))]
                store = home
            parts.setdefault(store.number, []).append(i)
            ids.append(new_id(store.number))
        return ids, groups, keyed

    async def _as_of(self, shards: Iterable[ShardNo]) -> datetime | None:
        """A time of after the call's arrival that none of these shards is before: what the call brings counts from
        then, wherever it lives, and so keeps its order. A shard that does not tell its time has no say."""
        times = await asyncio.gather(*(self._time_of(self._stores[shard]) for shard in shards))
        return min((time for time in times if time is not None), default=None)

    async def _time_of(self, store: Store) -> datetime | None:
        try:
            async with asyncio.timeout(TIME_WAIT_S):
                return await store.time()
        except (Unavailable, TimeoutError):
            return None

    async def _enqueue_at(self, shard: ShardNo, call: _Call, part: Sequence[int], *, spills: bool = True) -> None:
        try:
            rows = await self._rows(self._stores[shard], call, part)
            flushed = await self.flushes[shard].submit(rows, call.namespace, texts=texts_of(rows))
        except Unavailable as error:
            call.refuse(part, error)
            if spills and error.outcome == "none":
                await self._spill(shard, call, part)
            return
        for i, result in zip(part, flushed, strict=True):
            call.results[i] = result

    async def _spill(self, shard: ShardNo, call: _Call, part: Sequence[int]) -> None:
        """Items that may live anywhere, and were surely not taken by this shard, go to one that takes items."""
        free = [i for i in part if call.items[i].id is None and call.items[i].affinity is None]
        other = shard
        if free:
            other = self._placement.choose(call.namespace, call.items[free[0]].topic, 0, but=shard)
        if other != shard:
            for i, item_id in zip(free, new_ids(other, len(free)), strict=True):
                call.ids[i] = item_id
            await self._enqueue_at(other, call, free, spills=False)

    async def _keyed_at(self, shard: ShardNo, call: _Call, part: Sequence[int]) -> None:
        store, items, ids, results = self._stores[shard], call.items, call.ids, call.results
        first: dict[str, int] = {}
        for i in part:
            first.setdefault(items[i].idempotency_key or "", i)
        unique = list(first.values())
        try:
            rows = await self._rows(store, call, unique)
            prints = {i: fingerprint(items[i]) for i in part}
            flushed, holders = await store.enqueue_keyed(
                rows,
                list(first),
                [prints[i] for i in unique],
                [slot_of(call.namespace, key) for key in first],
                [key for key, i in first.items() if items[i].unique],
            )
        except Unavailable as error:
            call.refuse(part, error)
            return
        await self._dispatch.place_lanes(store.number)
        taken = set(flushed.taken or ())
        self._tell_enqueued(store, [row for row in rows if row.id in taken], flushed)
        held = dict(zip(first, holders, strict=True))
        for i in part:
            holder = held[items[i].idempotency_key or ""]
            if holder is None:
                # The slot has moved, and this process has not heard of it yet.
                results[i] = refused(ids[i], ShardUnavailable.code)
            elif holder.id == ids[i]:
                results[i] = Result(holder.id, "enqueued")
            elif holder.fingerprint == prints[i]:
                results[i] = Result(holder.id, "duplicate")
            else:
                results[i] = refused(ids[i], "key_reused")

    async def _rows(self, store: Store, call: _Call, part: Sequence[int]) -> list[NewRow]:
        store.pool.admit()
        items = [(call.items[i], call.ids[i]) for i in part]
        pairs = {(call.namespace, topic) for topic in {item.topic for item, _ in items}}
        ack_topics = {item.ack_topic for item, _ in items}
        pairs |= {ack_pair(call.namespace, ack_topic) for ack_topic in ack_topics if ack_topic is not None}
        await store.names.make(pairs)
        return new_rows(store, call.namespace, items, call.caller, call.as_of)

    async def flush(self, store: Store, rows: Sequence[NewRow]) -> list[Result]:
        """Take in rows of several calls, of one shard; a result each."""
        # Of an id that comes twice the first counts, whoever's it is: the statement would take any of them.
        first: dict[str, NewRow] = {}
        for row in rows:
            first.setdefault(row.id, row)
        unique = list(first.values())
        topics = {row.kind.topic for row in unique if not row.waits}
        with self._dispatch.handing_of(store.number, topics, len(unique)) as handing:
            flushed = await handing.flush(lambda offers: store.enqueue(unique, offers))
            handing.hand(flushed.handed)
        await self._dispatch.place_lanes(store.number)
        if flushed.taken is None and len(unique) == len(rows):
            self._tell_enqueued(store, rows, flushed)
            return [Result(row.id, "enqueued") for row in rows]
        taken = set(first if flushed.taken is None else flushed.taken)
        new = [row for row in unique if row.id in taken]
        self._tell_enqueued(store, new, flushed)
        with something_done():
            known = await store.known([row.id for row in rows if row.id not in taken])
            # Asked here, since nothing was written in the topic of an item that only repeats another.
            namespaces = {row.kind.topic[0] for row in rows}
            namespace_ids = {name: await store.names.namespace_id(name) for name in namespaces}
        return [self._outcome(row, taken, known, namespace_ids[row.kind.topic[0]], flushed) for row in rows]

    def _outcome(
        self,
        row: NewRow,
        taken: set[str],
        known: dict[str, Known],
        namespace_id: NamespaceId | None,
        flushed: Enqueued,
    ) -> Result:
        if row.id in taken:
            taken.discard(row.id)
            known[row.id] = Known(flushed.refs[row.kind.topic].namespace_id, "living")
            return Result(row.id, "enqueued")
        found = known.get(row.id)
        if found is not None:
            if found.namespace_id != namespace_id:
                return refused(row.id, "id_unavailable")
            return Result(row.id, "cancelled" if found.outcome == "cancelled" else "duplicate")
        ahead = row.kind.named and row.time_ms > flushed.at.timestamp() * 1000
        return refused(row.id, "id_in_future" if ahead else "id_too_old")

    def _tell_enqueued(self, store: Store, rows: Sequence[NewRow], flushed: Enqueued) -> None:
        self._enqueued[store.number].inc(len(rows))
        for topic, count in collections.Counter([row.kind.topic for row in rows]).items():
            store.flow.took(flushed.refs[topic].topic_id, count)
        topics: dict[TopicId, list[Key]] = {}
        handed = {key.id for key, _ in flushed.handed}
        for row in rows:
            if not row.waits and row.id not in handed:
                kind = row.kind
                key = Key(kind.priority, flushed.since(kind), row.id)
                topics.setdefault(flushed.refs[kind.topic].topic_id, []).append(key)
        for topic_id, keys in topics.items():
            self._dispatch.ready_in(store.number, topic_id, keys)

    def _at(self, namespace: str, key: str) -> Store:
        return self._stores[self._shards.of_slot(slot_of(namespace, key)).number]
