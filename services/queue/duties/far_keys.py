"""Idempotency keys whose items live on another shard: their slots moved here, the items stayed.

The end of an item frees its key in the same transaction only where both are on one shard. For the others this
duty looks from time to time whether the item is gone. A key that is kept a while too long is a duplicate that
is still known, never an item that runs twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.queue.settings import QueueSettings
from services.queue.store.names import SQL
from services.queue.store.shard_store import Store
from shared.errors import ShardUnavailable

_BEGIN = (-1, 0, "")


class FarKeys:
    """The duty of one shard; it asks the others."""

    def __init__(self, store: Store, stores: Mapping[int, Store], settings: QueueSettings) -> None:
        self._store = store
        self._stores = stores
        self._limit = settings.chunk_items_max
        self._after = _BEGIN

    async def step(self) -> int:
        """Look at a page of keys and let those go whose items are gone."""
        lives_at, namespace_id, key = self._after
        page = await self._store.pool.fetch(
            SQL.far_keys,
            after_lives_at=lives_at,
            after_namespace_id=namespace_id,
            after_key=key,
            limit=self._limit,
        )
        gone = []
        for number in {row["lives_at"] for row in page}:
            gone += await self._gone(number, [row for row in page if row["lives_at"] == number])
        if gone:
            await self._store.pool.fetch(
                SQL.end_far_keys,
                namespace_ids=[row["namespace_id"] for row in gone],
                keys=[row["key"] for row in gone],
                ids=[row["id"] for row in gone],
            )
        full = len(page) == self._limit
        self._after = (page[-1]["lives_at"], page[-1]["namespace_id"], page[-1]["key"]) if full else _BEGIN
        return len(page) if full else 0

    async def _gone(self, number: int, rows: list[Any]) -> list[Any]:
        home = self._stores.get(number)
        if home is None:
            return []
        try:
            living = await home.states([row["id"] for row in rows])
        except ShardUnavailable:
            return []  # another look will come
        return [row for row in rows if row["id"] not in living]
