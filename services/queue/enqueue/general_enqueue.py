"""Enqueue calls that say more than a topic and a payload: ids, keys, affinities, delays, disabled items.

Every id may have come before, and have ended since; so a flush asks what became of those that it did not take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

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
from shared.ids import canonical, new_ids, shard_of
from shared.metrics import ENQUEUED
from shared.postgres.batcher import Batcher
from shared.shards.map_file import slot_of
from shared.shards.shard_map import ShardMap


class GeneralEnqueues:
    """Takes such items in."""

    def __init__(
        self, shards: ShardMap, dispatch: Dispatch, placement: Placement, settings: QueueSettings
    ) -> None:
        self._shards = shards
        self._dispatch = dispatch
        self._placement = placement
        self._settings = settings
        self._stores: dict[int, Store] = {}
        self._enqueued: dict[int, Counter] = {}
        self.flushes: dict[int, Batcher[NewRow, Result]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        limits = self._settings.flush_limits
        self._enqueued[store.number] = ENQUEUED.labels(store.number)
        self.flushes[store.number] = Batcher(self._enqueuer(store), limits, Urgency.ENQUEUE, store.pool)
        self._stores[store.number] = store

    async def enqueue(self, namespace: str, items: list[NewItem], caller: Caller) -> list[Result]:
        """Take items in; one result per item, in order."""
        home: Store | None = None
        results: list[Result | None] = [None] * len(items)
        groups: dict[int, list[int]] = {}
        keyed: dict[int, list[int]] = {}
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
            if item.idempotency_key is not None:
                store = self._at(namespace, item.idempotency_key)
                keyed.setdefault(store.number, []).append(i)
            elif item.affinity is not None:
                store = self._at(namespace, item.affinity)
                groups.setdefault(store.number, []).append(i)
            else:
                home = home or self._stores[self._placement.choose(namespace, item.topic, len(items))]
                store = home
                groups.setdefault(store.number, []).append(i)
            ids.append("")
        for shard, part in (*groups.items(), *keyed.items()):
            unnamed = [i for i in part if not ids[i]]
            for i, item_id in zip(unnamed, new_ids(shard, len(unnamed)), strict=True):
                ids[i] = item_id
        flushes = [
            *(self._enqueue_at(n, namespace, items, ids, part, caller, results) for n, part in groups.items()),
            *(self._keyed_at(n, namespace, items, ids, part, caller, results) for n, part in keyed.items()),
        ]
        if len(flushes) == 1:
            await flushes[0]
        else:
            await asyncio.gather(*flushes)
        return [result for result in results if result is not None]

    async def _enqueue_at(
        self,
        shard: int,
        namespace: str,
        items: Sequence[NewItem],
        ids: Sequence[str] | dict[int, str],
        part: Sequence[int],
        caller: Caller,
        results: list[Result | None],
        *,
        spills: bool = True,
    ) -> None:
        try:
            rows = await self._rows(self._stores[shard], namespace, [(items[i], ids[i]) for i in part], caller)
            flushed = await self.flushes[shard].submit(rows, namespace, texts=texts_of(rows))
        except Unavailable as error:
            for i in part:
                results[i] = refused(ids[i], error.code, error.outcome)
            if spills and error.outcome == "none":
                await self._spill(shard, namespace, items, part, caller, results)
            return
        for i, result in zip(part, flushed, strict=True):
            results[i] = result

    async def _spill(
        self,
        shard: int,
        namespace: str,
        items: Sequence[NewItem],
        part: Sequence[int],
        caller: Caller,
        results: list[Result | None],
    ) -> None:
        """Items that may live anywhere, and were surely not taken by this shard, go to one that takes items."""
        free = [i for i in part if items[i].id is None and items[i].affinity is None]
        other = self._placement.choose(namespace, items[free[0]].topic, 0, but=shard) if free else shard
        if other != shard:
            ids = dict(zip(free, new_ids(other, len(free)), strict=True))
            await self._enqueue_at(other, namespace, items, ids, free, caller, results, spills=False)

    async def _keyed_at(
        self,
        shard: int,
        namespace: str,
        items: Sequence[NewItem],
        ids: Sequence[str],
        part: Sequence[int],
        caller: Caller,
        results: list[Result | None],
    ) -> None:
        store = self._stores[shard]
        first: dict[str, int] = {}
        for i in part:
            first.setdefault(items[i].idempotency_key or "", i)
        unique = list(first.values())
        try:
            rows = await self._rows(store, namespace, [(items[i], ids[i]) for i in unique], caller)
            prints = {i: fingerprint(items[i]) for i in part}
            flushed, holders = await store.enqueue_keyed(
                rows,
                list(first),
                [prints[i] for i in unique],
                [slot_of(namespace, key) for key in first],
                [key for key, i in first.items() if items[i].unique],
            )
        except Unavailable as error:
            for i in part:
                results[i] = refused(ids[i], error.code, error.outcome)
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

    async def _rows(
        self, store: Store, namespace: str, items: Sequence[tuple[NewItem, str]], caller: Caller
    ) -> list[NewRow]:
        store.pool.admit()
        pairs = {(namespace, topic) for topic in {item.topic for item, _ in items}}
        ack_topics = {item.ack_topic for item, _ in items}
        pairs |= {ack_pair(namespace, ack_topic) for ack_topic in ack_topics if ack_topic is not None}
        await store.names.make(pairs)
        return new_rows(store, namespace, items, caller)

    def _enqueuer(self, store: Store) -> Callable[[list[NewRow]], Awaitable[list[Result]]]:
        async def flush(rows: list[NewRow]) -> list[Result]:
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

        return flush

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
        topics: dict[TopicId, list[Key]] = {}
        at = flushed.at
        handed = {key.id for key, _ in flushed.handed}
        for row in rows:
            if not row.waits and row.id not in handed:
                kind = row.kind
                topics.setdefault(flushed.refs[kind.topic].topic_id, []).append(Key(kind.priority, at, row.id))
        for topic_id, keys in topics.items():
            self._dispatch.ready_in(store.number, topic_id, keys)

    def _at(self, namespace: str, key: str) -> Store:
        return self._stores[self._shards.of_slot(slot_of(namespace, key)).number]
