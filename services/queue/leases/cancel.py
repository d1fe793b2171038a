"""Cancel: items are ended whoever holds them, and ids not seen yet never begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.leases.shard_groups import at_each_shard, by_shard
from services.queue.model import NamespaceId, Ready, Result, refused
from services.queue.settings import QueueSettings
from services.queue.store import items
from services.queue.store.items import Removal
from services.queue.store.shard_store import Store
from shared.errors import something_done
from shared.http.access import Caller
from shared.ids import ShardNo, canonicals, time_ms_of
from shared.postgres.connections import Transaction

LOOKS_MAX = 5

_REFUSALS = ("cancel_limit", "id_in_future")


class Cancels:
    """Calls of the verb."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        dispatch: Dispatch,
        settings: QueueSettings,
        tell: Callable[[str, Sequence[str]], None] = lambda *_: None,
    ) -> None:
        self._stores = stores
        self._tell = tell
        self._dispatch = dispatch
        self._settings = settings

    async def cancel(self, namespace: str, ids: Sequence[str], caller: Caller) -> list[Result]:
        """End items, or see to it that ids not seen yet never begin; one result per id."""
        known_ids = canonicals(list(ids))
        results = [Result(item_id, "not_found") for item_id in ids]

        async def at(shard: ShardNo, places: Sequence[int]) -> None:
            store = self._stores[shard]
            wanted = [known_ids[i] or "" for i in places]
            store.pool.admit()
            namespace_id = await store.names.make_namespace(namespace)
            cancelled = await Cancel(store, self._settings, namespace_id, caller.is_dag_service).run(wanted)
            self._dispatch.ready(shard, cancelled.completions)
            self._tell(namespace, cancelled.from_leases)
            named: set[str] = set()
            for i, item_id in zip(places, wanted, strict=True):
                status = cancelled.by_id[item_id]
                if status == "cancelled" and item_id in named:
                    status = "already_cancelled"
                named.add(item_id)
                results[i] = refused(ids[i], status) if status in _REFUSALS else Result(ids[i], status)

        return await at_each_shard(by_shard(known_ids, self._stores), results, at)


class Cancelled(NamedTuple):
    """What became of each id, the completions of those that ended, and those that somebody held."""

    by_id: dict[str, str]
    completions: list[Ready]
    from_leases: list[str]


class Cancel:
    """One call's cancels on one shard."""

    def __init__(self, store: Store, settings: QueueSettings, namespace_id: NamespaceId, may_manage: bool) -> None:
        self._store = store
        self._settings = settings
        self._namespace_id = namespace_id
        self._may_manage = may_manage
        self._from_leases: list[str] = []

    async def run(self, ids: Sequence[str]) -> Cancelled:
        """Cancel the living; place tombstones for the unseen; look again where the two cross."""
        unique = list(dict.fromkeys(ids))
        statuses: dict[str, str] = {}
        completions: list[Ready] = []
        await self._look(unique, statuses, completions)
        with something_done():
            for _ in range(LOOKS_MAX - 1):
                rest = [item_id for item_id in unique if item_id not in statuses]
                if not rest:
                    break
                await self._look(rest, statuses, completions)
        statuses |= {item_id: "not_found" for item_id in unique if item_id not in statuses}
        return Cancelled(statuses, completions, self._from_leases)

    async def _look(self, ids: list[str], statuses: dict[str, str], completions: list[Ready]) -> None:
        found, ready = await self._store.pool.transaction(lambda tx: self._living(tx, ids))
        completions += ready
        statuses |= found
        with something_done():
            statuses |= await self._ended([item_id for item_id in ids if item_id not in statuses])
            unseen = [item_id for item_id in ids if item_id not in statuses]
            if unseen:
                statuses |= await self._unseen(unseen)

    async def _living(self, tx: Transaction, ids: list[str]) -> tuple[dict[str, str], list[Ready]]:
        states = await items.states(tx, ids)
        mine: list[str] = []
        statuses: dict[str, str] = {}
        for item_id, item in states.items():
            if item.namespace_id != self._namespace_id:
                statuses[item_id] = "not_found"
            elif item.managed and not self._may_manage:
                statuses[item_id] = "managed"
            elif item.state == "dead" and not item.managed:
                statuses[item_id] = "finished"
            else:
                mine.append(item_id)
        left = await items.leave_queues(tx, mine)
        # What was in none of the three is leased, or on its way between tables: hold its row, look again.
        rest = [item_id for item_id in mine if item_id not in left]
        locked = await items.lock_items(tx, rest) if rest else {}
        if locked:
            left |= await items.leave_queues(tx, list(locked))
        dead = {item_id for item_id, state in left.items() if state == "dead"}
        removals = [
            items.cancelled(item_id, left.get(item_id, "leased")) for item_id in sorted({*left, *locked} - dead)
        ]
        statuses |= {removal.id: "cancelled" for removal in removals}
        # A DAG's dead item is of no more use once its DAG lets go of it, and its end stays what it was.
        superseded = {item_id for item_id in dead if states[item_id].managed}
        removals += [Removal(item_id, "dead", "dead") for item_id in sorted(superseded)]
        if dead - superseded:
            # It died between the look and the lock; its place among the dead is given back.
            await items.park_dead(tx, sorted(dead - superseded))
        ready = await items.remove(tx, removals)
        self._from_leases += [removal.id for removal in removals if removal.state == "leased"]
        return statuses | dict.fromkeys(dead, "finished"), ready

    async def _ended(self, ids: list[str]) -> dict[str, str]:
        if not ids:
            return {}
        found = await self._store.known(ids)
        unknown = [item_id for item_id in ids if item_id not in found]
        if unknown:
            found |= await self._store.acked_lately(unknown)
            # What a sweep has taken out of its group between these two is in `ended` by now.
            unknown = [item_id for item_id in unknown if item_id not in found]
            found |= await self._store.known(unknown) if unknown else {}
        statuses: dict[str, str] = {}
        for item_id, known in found.items():
            if known.namespace_id != self._namespace_id:
                statuses[item_id] = "not_found"
            elif known.outcome == "cancelled":
                statuses[item_id] = "already_cancelled"
            elif known.outcome != "living":
                statuses[item_id] = "finished"
        return statuses

    async def _unseen(self, ids: list[str]) -> dict[str, str]:
        now = await self._store.time()
        oldest_ms = int((now.timestamp() - self._settings.id_window_s) * 1000)
        newest_ms = oldest_ms + int((self._settings.id_window_s + self._settings.id_ahead_s_max) * 1000)
        young = [item_id for item_id in ids if oldest_ms <= time_ms_of(item_id) <= newest_ms]
        statuses = {
            item_id: "not_found" if time_ms_of(item_id) < oldest_ms else "id_in_future"
            for item_id in ids
            if item_id not in young
        }
        if not young:
            return statuses
        cap = 2**31 - 1 if self._may_manage else self._settings.unseen_cancels_max

        async def work(tx: Transaction) -> dict[str, str]:
            placed = await items.place_tombstones(tx, young, self._namespace_id)
            may_have = await items.charge_tombstones(tx, self._namespace_id, len(placed), cap)
            if placed and not may_have:
                await items.take_up_tombstones(tx, placed)
                return dict.fromkeys(placed, "cancel_limit")
            await items.bury_tombstones(tx, placed)
            return dict.fromkeys(placed, "cancelled")

        return statuses | await self._store.pool.transaction(work)
