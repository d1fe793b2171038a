"""Extend: leases of items are made to end so many seconds from now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

from services.queue.leases.held_items import each_held, lock_held, lost_statuses
from services.queue.model import NamespaceId, Result
from services.queue.store.leases import Told, lease_again, leave_groups
from services.queue.store.shard_store import Store
from shared.errors import something_done
from shared.ids import ShardNo
from shared.postgres.connections import Transaction


class Extension(NamedTuple):
    """One element of an extend call; `progress` as JSON text."""

    id: str
    lease_token: str
    lease_s: float | None
    progress: str | None = None

    def named(self, item_id: str, lease_token: str) -> Self:
        """The same, its names in their canonical forms."""
        return self._replace(id=item_id, lease_token=lease_token)


class Extends:
    """Calls of the verb."""

    def __init__(
        self, stores: Mapping[ShardNo, Store], note: Callable[[str, str, float], None] = lambda *_: None
    ) -> None:
        self._stores = stores
        self._note = note

    async def extend(self, namespace: str, items: Sequence[Extension]) -> list[Result]:
        """Let the leases of these items end `lease_s` from now; one result per item."""
        return await each_held(self._stores, namespace, items, partial(self._extend_at, namespace))

    async def _extend_at(
        self, namespace: str, store: Store, namespace_id: NamespaceId, extensions: list[Extension]
    ) -> dict[int, str]:
        async def work(tx: Transaction) -> dict[int, str]:
            held, items, holdings = await lock_held(tx, namespace_id, extensions)
            leases = {(extensions[position].lease_token, extensions[position].id) for position in held}
            named = [i for i, wanted in enumerate(extensions) if (wanted.lease_token, wanted.id) in leases]
            # Of a lease that is named twice the last word counts.
            wanted_s = {extensions[i].id: extensions[i].lease_s for i in named}
            told = {
                extensions[i].id: Told(progress, None)
                for i in named
                if (progress := extensions[i].progress) is not None
            }
            again = []
            for token, item_id in sorted(leases):
                item, lease_s = items[item_id], wanted_s[item_id]
                holding = holdings[item_id]
                room_s = item.room_s(holding.claimed_at)
                if room_s <= 0:
                    continue  # its time is over: the reaper takes it back
                lease_s = min(item.lease_s if lease_s is None else lease_s, room_s)
                holding = holding._replace(told=told.get(item_id, holding.told))
                if holding.worker is not None:
                    self._note(namespace, holding.worker, lease_s)
                again.append((token, lease_s, namespace_id, item.topic_id, item_id, holding))
            extended = {(token, item_id) for token, _, _, _, item_id, _ in again}
            if again:
                await leave_groups(tx, sorted(extended))
                await lease_again(tx, again)
            return {
                position: "extended" if (entry.lease_token, entry.id) in extended else "lease_lost"
                for position in named
                for entry in (extensions[position],)
            }

        statuses = await store.pool.transaction(work)
        with something_done():
            return statuses | await lost_statuses(store, namespace_id, extensions, statuses)
