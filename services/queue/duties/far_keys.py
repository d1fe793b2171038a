"""Idempotency keys whose items live on another shard: their slots moved here, the items stayed.

The end of an item frees its key in the same transaction only where both are on one shard. For the others this
duty looks from time to time whether the item is gone, or dead. A key that is kept a while too long is a duplicate
that is still known, never an item that runs twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.queue.settings import QueueSettings
from services.queue.store import items, retention
from services.queue.store.retention import FarKey
from services.queue.store.shard_store import Store
from shared.errors import ShardUnavailable
from shared.ids import ShardNo

_BEGIN = (-1, 0, "")


class FarKeys:
    """The duty of one shard; it asks the others."""

    def __init__(self, store: Store, stores: Mapping[ShardNo, Store], settings: QueueSettings) -> None:
        self._store = store
        self._stores = stores
        self._limit = settings.chunk_items_max
        self._after = _BEGIN

    async def step(self) -> int:
        """Look at a page of keys, and let those go whose items are gone, or dead."""
        page = await retention.far_keys(self._store.pool, self._after, self._limit)
        news: list[tuple[FarKey, str]] = []
        for number in {key.lives_at for key in page}:
            news += await self._news(number, [key for key in page if key.lives_at == number])
        if news:
            await retention.note_far_keys(self._store.pool, *zip(*news, strict=True))
        full = len(page) == self._limit
        self._after = (page[-1].lives_at, page[-1].namespace_id, page[-1].key) if full else _BEGIN
        return len(page) if full else 0

    async def _news(self, number: ShardNo, keys: list[FarKey]) -> list[tuple[FarKey, str]]:
        """Those of whose items there is news, and what it is."""
        home = self._stores.get(number)
        if home is None:
            return []
        try:
            living = await items.states(home.pool, [key.id for key in keys])
        except ShardUnavailable:
            return []  # another look will come
        found = [(key, living[key.id].state if key.id in living else "gone") for key in keys]
        return [(key, state) for key, state in found if state == "gone" or (state == "dead") != key.is_free]
