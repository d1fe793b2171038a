"""Enqueue calls as most are: ids made here, and nothing given but topic, payload, priority and lease.

No such item can meet another of its id, so a flush has nothing to look up and nothing to tell apart but its
kinds (namespace, topic, priority, lease): it goes to the database as a few rows of texts, which costs a
fraction of an array of every field of every item.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import cast

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.placement import Placement
from services.queue.model import (
    SEPARATOR,
    Even,
    Key,
    Kind,
    PlainCall,
    PlainItem,
    PlainPart,
    Result,
    TopicId,
    refused,
)
from services.queue.settings import QueueSettings
from services.queue.store.enqueue import Enqueued
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency
from shared.errors import Unavailable
from shared.ids import ShardNo, new_ids
from shared.metrics import ENQUEUED
from shared.postgres.batcher import Batcher

# Items of one kind, in order: their ids, and their payloads' JSON texts, joined.
Entry = tuple[Kind, Sequence[str], str]


class SimpleEnqueues:
    """Takes plain items in."""

    def __init__(self, dispatch: Dispatch, placement: Placement, settings: QueueSettings) -> None:
        self._dispatch = dispatch
        self._placement = placement
        self._settings = settings
        self._stores: dict[ShardNo, Store] = {}
        self.flushes: dict[ShardNo, Batcher[Entry, None]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        limits = self._settings.flush_limits
        self.flushes[store.number] = Batcher(self._flusher(store), limits, Urgency.ENQUEUE, store.pool)
        self._stores[store.number] = store

    async def enqueue(self, namespace: str, parts: Sequence[PlainPart]) -> Even | list[Result]:
        """One result per item, in order. All go to one shard; to another where that one surely took none."""
        topic, count = parts[0].topic, sum([len(part.places) for part in parts])
        shard = self._placement.choose(namespace, topic, count)
        ids = new_ids(shard, count)
        try:
            return await self._enqueue_at(shard, namespace, parts, ids)
        except Unavailable as error:
            other = self._placement.choose(namespace, topic, 0, but=shard)
            if error.outcome != "none" or other == shard:
                return [refused(item_id, error.code, error.outcome) for item_id in ids]
        ids = new_ids(other, count)
        try:
            return await self._enqueue_at(other, namespace, parts, ids)
        except Unavailable as error:
            return [refused(item_id, error.code, error.outcome) for item_id in ids]

    async def _enqueue_at(
        self, shard: ShardNo, namespace: str, parts: Sequence[PlainPart], ids: list[str]
    ) -> Even:
        store = self._stores[shard]
        if are_new(store, namespace, parts):
            await make_topics(store, namespace, parts)
        entries = entries_of(namespace, parts, ids)
        texts = [part.payloads for part in parts]
        await self.flushes[shard].submit(entries, namespace, size=len(ids), texts=texts)
        return Even(ids, "enqueued")

    def _flusher(self, store: Store) -> Callable[[list[Entry]], Awaitable[list[None]]]:
        enqueued = ENQUEUED.labels(store.number)

        async def flush(entries: list[Entry]) -> list[None]:
            kinds = joined(entries)
            enqueued.inc(tell_ready(self._dispatch, store, kinds, await store.enqueue_plain(kinds)))
            return [None] * len(entries)

        return flush


def are_new(store: Store, namespace: str, parts: Sequence[PlainPart]) -> bool:
    """Whether one of the topics is not known here: `make_topics` is to come before the flush."""
    return None in [store.names.known(namespace, part.topic) for part in parts]


async def make_topics(store: Store, namespace: str, parts: Sequence[PlainPart]) -> None:
    """Give topics their numbers; in the flush that would hold up others."""
    store.pool.admit()
    await store.names.make([(namespace, part.topic) for part in parts])


def entries_of(namespace: str, parts: Sequence[PlainPart], ids: Sequence[str]) -> list[Entry]:
    """A call's parts for a flush."""
    if len(parts) == 1:
        [(topic, priority, lease_s, payloads, _)] = parts
        return [((namespace, topic, priority, lease_s), ids, payloads)]
    return [
        ((namespace, topic, priority, lease_s), [ids[i] for i in places], payloads)
        for topic, priority, lease_s, payloads, places in parts
    ]


def tell_ready(dispatch: Dispatch, store: Store, entries: Sequence[Entry], flushed: Enqueued) -> int:
    """A flush of these has been taken in as a whole: their keys are known from here on; how many they are."""
    topics: dict[TopicId, list[Key]] = {}
    for (namespace, topic, priority, _), ids, _ in entries:
        # As `Key(priority, at, id)` of each, at half its cost.
        made = map(tuple.__new__, repeat(Key), zip(repeat(priority), repeat(flushed.at), ids))
        topics.setdefault(flushed.refs[namespace, topic].topic_id, []).extend(made)
    for topic_id, keys in topics.items():
        store.flow.took(topic_id, len(keys))
        dispatch.ready_in(store.number, topic_id, keys)
    return sum(map(len, topics.values()))


def joined(entries: Sequence[Entry]) -> Sequence[Entry]:
    """One entry for each kind."""
    if len(entries) == 1:
        return entries
    kinds: dict[Kind, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(entry[0], []).append(entry)
    found: list[Entry] = []
    for kind, parts in kinds.items():
        _, ids, payloads = zip(*parts, strict=True)
        found.append((kind, list(chain.from_iterable(ids)), SEPARATOR.join(payloads)))
    return found


def plain_call(items: Sequence[PlainItem]) -> PlainCall:
    """A call's items by their kinds."""
    ids = None if items[0].id is None else [cast("str", item.id) for item in items]
    return PlainCall(parts_of(items), ids)


def parts_of(items: Sequence[PlainItem]) -> list[PlainPart]:
    """A call's items by topic, priority and lease; mostly all are of one kind."""
    if len(items) == 1:
        [item] = items
        return [PlainPart(item.topic, item.priority, item.lease_s, bytes(item.payload).decode(), range(1))]
    kinds = [(item.topic, item.priority, item.lease_s) for item in items]
    places: dict[tuple[str, int, float], Sequence[int]] = {}
    if kinds.count(kinds[0]) == len(kinds):
        places[kinds[0]] = range(len(kinds))
    else:
        found: dict[tuple[str, int, float], list[int]] = {}
        for i, kind in enumerate(kinds):
            found.setdefault(kind, []).append(i)
        places.update(found)
    separator = SEPARATOR.encode()
    return [
        PlainPart(*kind, separator.join([items[i].payload for i in mine]).decode(), mine)
        for kind, mine in places.items()
    ]
