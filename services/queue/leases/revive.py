"""Revive: disabled items are opened, and become deliverable. Calls share a flush per shard and right to manage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.leases.shard_groups import at_each_shard, by_shard
from services.queue.model import NamespaceId, Ready, Result
from services.queue.settings import QueueSettings
from services.queue.store import items
from services.queue.store.items import ItemState
from services.queue.store.shard_store import Known, Store
from shared.admission.connection_priority import Urgency
from shared.errors import something_done
from shared.http.access import Caller
from shared.ids import ShardNo, canonicals
from shared.postgres.batcher import Batcher

# Of an item that is to be revived: its id, the namespace that asks, and its inputs.
ReviveEntry = tuple[str, NamespaceId, str | None]


class Revives:
    """Calls of the verb, and their flushes."""

    def __init__(self, stores: Mapping[ShardNo, Store], dispatch: Dispatch, settings: QueueSettings) -> None:
        self._stores = stores
        self._dispatch = dispatch
        self._settings = settings
        self.flushes: dict[tuple[int, bool], Batcher[ReviveEntry, str]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        for manages in (False, True):
            self.flushes[store.number, manages] = Batcher(
                self._reviver(store, manages), self._settings.flush_limits, Urgency.SETTLE, store.pool
            )

    async def revive(
        self, namespace: str, wanted: Sequence[tuple[str, str | None]], caller: Caller
    ) -> list[Result]:
        """Open disabled items of (id, inputs); one result per item, in order."""
        ids = canonicals([item_id for item_id, _ in wanted])
        results = [Result(item_id, "not_found") for item_id, _ in wanted]

        async def at(shard: ShardNo, places: Sequence[int]) -> None:
            store = self._stores[shard]
            store.pool.admit()
            namespace_id = await store.names.namespace_id(namespace)
            if namespace_id is None:
                return
            entries = [(ids[i] or "", namespace_id, wanted[i][1]) for i in places]
            texts = [inputs for _, _, inputs in entries]
            flushes = self.flushes[shard, caller.is_dag_service]
            statuses = await flushes.submit(entries, namespace, texts=texts)
            for i, status in zip(places, statuses, strict=True):
                results[i].status = status

        return await at_each_shard(by_shard(ids, self._stores), results, at)

    def _reviver(self, store: Store, manages: bool) -> Callable[[list[ReviveEntry]], Awaitable[list[str]]]:
        async def flush(entries: list[ReviveEntry]) -> list[str]:
            # Once per id and namespace: another namespace's call for the same id must not take its place.
            first = {entry[:2]: entry for entry in reversed(entries)}
            ids, namespace_ids, inputs = zip(*(first[key] for key in sorted(first)), strict=True)
            with self._dispatch.handing(store.number, "revive", len(entries)) as handing:
                revived = await handing.flush(
                    lambda offers: store.revive(ids, namespace_ids, inputs, manages, offers)
                )
                open_now = [item for item in revived if item.is_ready]
                handing.hand([handed for item in open_now if (handed := item.handed) is not None])
                ready = [Ready(item.topic_id, item.key) for item in open_now if item.token is None]
                handing.saw([item.topic_id for item in ready])
            opened = {item.id: item for item in revived}
            self._dispatch.ready(store.number, ready)
            await self._dispatch.place_lanes(store.number)
            others = [entry[0] for entry in entries if entry[0] not in opened]
            with something_done():
                states = await items.states(store.pool, others) if others else {}
                known = await store.known(others) if others else {}
                unknown = [item_id for item_id in others if item_id not in states and item_id not in known]
                known |= await store.acked_lately(unknown) if unknown else {}
            statuses = []
            for item_id, namespace_id, _ in entries:
                item = opened.get(item_id)
                if item is not None:
                    states[item_id] = ItemState(item_id, item.namespace_id, item.managed, "enabled")
                if item is not None and item.namespace_id == namespace_id and (manages or not item.managed):
                    del opened[item_id]
                    statuses.append("revived")
                else:
                    statuses.append(_closed_status(states.get(item_id), known.get(item_id), namespace_id, manages))
            return statuses

        return flush


def _closed_status(state: ItemState | None, known: Known | None, namespace_id: NamespaceId, manages: bool) -> str:
    if state is not None and state.namespace_id == namespace_id:
        if state.managed and not manages:
            return "managed"
        # A disabled item came after the look that missed it: it was not there to be opened.
        return {"dead": "finished", "disabled": "not_found"}.get(state.state, "already_enabled")
    if known is None or known.namespace_id != namespace_id or known.outcome == "living":
        return "not_found"
    return "cancelled" if known.outcome == "cancelled" else "finished"
