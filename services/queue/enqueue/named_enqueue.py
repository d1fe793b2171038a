"""Enqueue calls of plain items with ids by their callers, as SDKs make them.

Such an id may have come before, and have ended since. Mostly it has not: a flush takes all in as new, and where
one is not the database refuses it as a whole. Then, and where a call waits to be handed what comes, the rows go
the general way, which looks at each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.general_enqueue import GeneralEnqueues
from services.queue.enqueue.simple_enqueue import Entry, are_new, entries_of, joined, make_topics, tell_ready
from services.queue.model import SEPARATOR, Even, NewRow, PlainPart, RareKind, Result, refused
from services.queue.settings import QueueSettings
from services.queue.store.enqueue import NotNew
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency
from shared.errors import Invalid, Unavailable, invalid
from shared.fallback import Fallback
from shared.ids import ShardNo, shard_of, time_ms_of
from shared.metrics import ENQUEUED
from shared.postgres.batcher import Batcher

# What became of an entry's items, where not all were enqueued.
Outcome = list[Result] | None


class NamedEnqueues:
    """Takes such items in."""

    def __init__(self, general: GeneralEnqueues, dispatch: Dispatch, settings: QueueSettings) -> None:
        self._general = general
        self._dispatch = dispatch
        self._settings = settings
        self._stores: dict[ShardNo, Store] = {}
        self.flushes: dict[ShardNo, Batcher[Entry, Outcome]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        limits = self._settings.flush_limits
        self.flushes[store.number] = Batcher(self._flusher(store), limits, Urgency.ENQUEUE, store.pool)
        self._stores[store.number] = store

    async def enqueue(self, namespace: str, parts: Sequence[PlainPart], ids: Sequence[str]) -> Even | list[Result]:
        """One result per item, in order. `ids` are of one shard."""
        shard = shard_of(ids[0])
        if shard not in self._stores:
            raise invalid("/items/0/id", "its last 12 bits are no shard of this service")
        texts = [part.payloads for part in parts]
        try:
            store = self._stores[shard]
            if are_new(store, namespace, parts):
                await make_topics(store, namespace, parts)
            entries = entries_of(namespace, parts, ids)
            outcomes = await self.flushes[shard].submit(entries, namespace, size=len(ids), texts=texts)
        except Unavailable as error:
            return [refused(item_id, error.code, error.outcome) for item_id in ids]
        if not any(outcomes):
            return Even(ids, "enqueued")
        results = Even(ids, "enqueued").each()
        for part, outcome in zip(parts, outcomes, strict=True):
            for place, result in zip(part.places, outcome or (), strict=outcome is not None):
                results[place] = result
        return results

    def _flusher(self, store: Store) -> Callable[[list[Entry]], Awaitable[list[Outcome]]]:
        enqueued = ENQUEUED.labels(store.number)

        async def flush(entries: list[Entry]) -> list[Outcome]:
            topics = {kind[:2] for kind, _, _ in entries}
            if self._dispatch.is_awaited(store.number, topics, sum(len(ids) for _, ids, _ in entries)):
                return await self._one_by_one(store, entries)
            kinds = joined(entries)
            try:
                flushed = await store.enqueue_named(kinds)
            except (NotNew, Invalid):
                Fallback("known").counted("enqueue_named")
                return await self._one_by_one(store, entries)
            enqueued.inc(tell_ready(self._dispatch, store, kinds, flushed))
            return [None] * len(entries)

        return flush

    async def _one_by_one(self, store: Store, entries: Sequence[Entry]) -> list[Outcome]:
        results = iter(await self._general.flush(store, [row for entry in entries for row in _rows(entry)]))
        return [[next(results) for _ in ids] for _, ids, _ in entries]


def _rows(entry: Entry) -> list[NewRow]:
    (namespace, topic, priority, lease_s), ids, payloads = entry
    kind = RareKind((namespace, topic), None, priority, lease_s, True, None)
    texts = payloads.split(SEPARATOR)
    return [
        NewRow(item_id, kind, time_ms_of(item_id), text, None, False)
        for item_id, text in zip(ids, texts, strict=True)
    ]
