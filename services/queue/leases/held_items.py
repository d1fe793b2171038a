"""Items that are held under a token: what nack and extend do alike.

Each call is one transaction per shard that first locks the membership rows, then the item rows, and then decides.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

from services.queue.leases.shard_groups import at_each_shard, by_shard
from services.queue.model import NamespaceId, Result, backoff_s
from services.queue.store.items import LockedItem, lock_items
from services.queue.store.leases import Holding, held_under, lock_groups
from services.queue.store.shard_store import Known, Store
from shared.ids import ShardNo, canonical_token, canonicals, new_token
from shared.postgres.connections import Transaction

# An extend moves a lease into a new row: who waited for the old one looks again, once for each extend of the same
# holder that is on its way.
LOOKS_MAX = 8


class HeldEntry(Protocol):
    """An element of a call about items that are held under a token."""

    @property
    def id(self) -> str:
        """The item's."""

    @property
    def lease_token(self) -> str:
        """Under which it is held, as the caller says."""

    def named(self, item_id: str, lease_token: str) -> Self:
        """The same, its names in their canonical forms."""


E = TypeVar("E", bound=HeldEntry)


async def each_held(
    stores: Mapping[ShardNo, Store],
    namespace: str,
    items: Sequence[E],
    act: Callable[[Store, NamespaceId, list[E]], Awaitable[dict[int, str]]],
) -> list[Result]:
    """Let `act` do to items under their tokens what a call wants of them, shard by shard; one result each."""
    results = [Result(item.id, "not_found") for item in items]
    ids = canonicals([item.id for item in items])

    async def at(shard: ShardNo, places: Sequence[int]) -> None:
        store = stores[shard]
        store.pool.admit()
        namespace_id = await store.names.namespace_id(namespace)
        if namespace_id is None:
            return
        entries = [
            items[i].named(ids[i] or "", canonical_token(items[i].lease_token) or new_token()) for i in places
        ]
        statuses = await act(store, namespace_id, entries)
        for position, i in enumerate(places):
            results[i].status = statuses[position]

    return await at_each_shard(by_shard(ids, stores), results, at)


async def lock_held(
    tx: Transaction, namespace_id: NamespaceId, entries: Sequence[HeldEntry]
) -> tuple[list[int], dict[str, LockedItem], dict[str, Holding]]:
    """Lock the groups and item rows behind (id, token) entries; positions that are truly held, once each, and
    since when by whom."""
    found: dict[str, dict[int, Holding]] = {}
    for _ in range(LOOKS_MAX):
        groups = await lock_groups(tx, [entry.lease_token for entry in entries])
        for position, entry in enumerate(entries):
            for group in groups.get(entry.lease_token, ()):
                if group.namespace_id == namespace_id and entry.id in group.ids:
                    found.setdefault(entry.id, {})[position] = group.holding
        missing = [(entry.lease_token, entry.id) for entry in entries if entry.id not in found]
        if not missing or not await held_under(tx, missing):
            break
    items = await lock_items(tx, list(found)) if found else {}
    held: list[int] = []
    holdings: dict[str, Holding] = {}
    for item_id, item in items.items():
        for position, holding in sorted(found[item_id].items()):
            if item_id not in holdings and _is_of(item, holding):
                held.append(position)
                holdings[item_id] = holding
    return held, items, holdings


def _is_of(item: LockedItem, holding: Holding) -> bool:
    """Whether a lease that names an item's id is the item's.

    One that its caller named, and enqueued after the claim, is another under the id of one that was acked.
    """
    return not item.remembered or item.managed or item.enqueued_at <= holding.claimed_at


async def lost_statuses(
    store: Store, namespace_id: NamespaceId, entries: Sequence[HeldEntry], statuses: dict[int, str]
) -> dict[int, str]:
    """What holders of dead tokens are told: of entries that have no status yet."""
    lost = [position for position in range(len(entries)) if position not in statuses]
    if not lost:
        return {}
    known = await store.known([entries[position].id for position in lost])
    return {position: lost_status(known.get(entries[position].id), namespace_id) for position in lost}


def lost_status(known: Known | None, namespace_id: NamespaceId) -> str:
    """What the holder of a dead token is told of its item."""
    if known is None or known.namespace_id != namespace_id:
        return "not_found"
    return "cancelled" if known.outcome == "cancelled" else "lease_lost"


def is_last_attempt(item: LockedItem) -> bool:
    """Whether the delivery that an item is in uses up its attempts."""
    return bool(item.max_attempts) and item.attempts + 1 >= item.max_attempts


def pause_s(item: LockedItem) -> float:
    """How long an item waits that this delivery has failed."""
    return backoff_s(item.attempts + 1, item.backoff, random.random())  # noqa: S311 (spreads load)
