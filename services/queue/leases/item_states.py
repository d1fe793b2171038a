"""Where many items stand, in one question to each of their shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from services.queue.dispatch.demand import Asked
from services.queue.leases.shard_groups import by_shard
from services.queue.settings import QueueSettings
from services.queue.store import items
from services.queue.store.items import Standing
from services.queue.store.leases import ItemLease, leases_of
from services.queue.store.shard_store import Store, store_of
from shared.admission.connection_priority import Urgency
from shared.admission.delay import overloaded
from shared.errors import Overloaded, Unavailable
from shared.ids import ShardNo, canonical, canonicals

_TAKEABLE = ("ready", "delayed")
_ERROR_CHARS = 200


class ItemStates:
    """Looks at items; the answer is a moment's, and nothing is locked."""

    def __init__(self, stores: Mapping[ShardNo, Store], asked: Asked, settings: QueueSettings) -> None:
        self._stores = stores
        self._asked = asked
        self._settings = settings

    async def attempts(self, namespace: str, item_id: str) -> list[dict[str, Any]]:
        """The deliveries of a DAG's item that failed, in the order of their ends; also of one that has ended."""
        known_id = canonical(item_id)
        store = store_of(self._stores, known_id)
        if store is None or known_id is None:
            return []
        store.pool.admit()
        rows_max = self._settings.logged_attempts_max
        found = await items.attempts_of(store.pool, known_id, namespace, rows_max)
        return [attempt._asdict() for attempt in found]

    async def attempts_of_many(self, namespace: str, ids: Sequence[str]) -> list[dict[str, Any]]:
        """One element per id: `found` with the last of its deliveries that failed, `not_found` where none is on
        record, `refused` where the shard did not answer."""
        rows_max = max(1, min(self._settings.logged_attempts_max, self._settings.attempts_shown_max // len(ids)))

        async def at(store: Store, known_ids: list[str]) -> dict[str, dict[str, Any]]:
            found = await items.attempts_of_many(store.pool, known_ids, namespace, rows_max, _ERROR_CHARS)
            return {
                item_id: {"status": "found", "attempts": [each._asdict() for each in attempts]}
                for item_id, attempts in found.items()
            }

        return await self._at_each_shard(ids, at)

    async def look(self, namespace: str, ids: Sequence[str]) -> list[dict[str, Any]]:
        """One element per id: `found` with state, attempt and since when, `not_found` for what has ended or is
        another namespace's, `refused` where the shard did not answer."""

        async def at(store: Store, known_ids: list[str]) -> dict[str, dict[str, Any]]:
            found = await _look_at(store, namespace, known_ids)
            for view in found.values():
                if view["state"] in _TAKEABLE:
                    view["unasked_s"] = round(self._asked.unasked_s(namespace, view["topic"]), 3)
            return found

        return await self._at_each_shard(ids, at)

    async def _at_each_shard(
        self, ids: Sequence[str], look: Callable[[Store, list[str]], Awaitable[Mapping[str, dict[str, Any]]]]
    ) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = [{"id": item_id, "status": "not_found"} for item_id in ids]
        known_ids = canonicals(list(ids))

        async def at(shard: ShardNo, places: Sequence[int]) -> None:
            store = self._stores[shard]
            try:
                store.pool.admit()
                found = await look(store, sorted({known_ids[i] or "" for i in places}))
            except Unavailable as error:
                for i in places:
                    answers[i] |= {"status": "refused", "code": error.code, "outcome": error.outcome}
                return
            for i in places:
                answers[i] |= found.get(known_ids[i] or "", {})

        await asyncio.gather(*(at(shard, places) for shard, places in by_shard(known_ids, self._stores).items()))
        if all(answer.get("code") == Overloaded.code for answer in answers):
            raise overloaded(Urgency.LIST)
        return answers


async def _look_at(store: Store, namespace: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    found = [item for item in await items.standings(store.pool, ids) if item.namespace == namespace]
    leases = await leases_of(store.pool, [item.id for item in found if item.state == "leased"])
    return {item.id: _view(item, leases.get(item.id)) for item in found}


def _view(item: Standing, lease: ItemLease | None) -> dict[str, Any]:
    state = item.state
    return {
        "status": "found",
        "topic": item.topic,
        "state": state,
        "attempt": item.attempts + (state == "leased"),
        "max_attempts": item.max_attempts,
        "since": lease.claimed_at if lease else item.deliver_at if state == "ready" else item.parked_at,
        "deliver_at": item.deliver_at,
        "lease_expires_at": None if lease is None else lease.expires_at,
        "worker": None if lease is None else lease.worker,
        "progress": None if lease is None else lease.progress_view,
        "unasked_s": None,
        "error": item.error,
    }
