"""What each verb does to items. Shapes are settled before (routes), statements after (store)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.general_enqueue import Enqueues
from services.queue.enqueue.placement import Placement
from services.queue.enqueue.simple_enqueue import PlainEnqueues, parts_of
from services.queue.leases.acks import Acks
from services.queue.model import (
    NO_OUTPUT,
    Demand,
    Even,
    Key,
    NewItem,
    PlainAcks,
    PlainItem,
    PlainPart,
    Ready,
    Result,
    Settled,
    refused,
    settled,
)
from services.queue.quotas import Tenant
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Leased
from services.queue.store.shard_store import Known, Store
from shared.admission.connection_priority import Urgency
from shared.admission.delay import overloaded
from shared.clock import SystemClock
from shared.errors import Unavailable, something_done
from shared.http.access import Caller
from shared.ids import canonical, canonical_token, canonicals, one_shard_of, shard_of
from shared.metrics import (
    DEQUEUED,
    REDELIVERED,
    SCHEDULE_TO_START_SECONDS,
)
from shared.postgres.batcher import Batcher
from shared.shards.shard_map import ShardMap

# Of an item that is to be revived: its id, the namespace that asks, and its inputs.
ReviveEntry = tuple[str, int, str | None]

_clock = SystemClock()


class Broker:
    """The verbs that move single items: enqueue, dequeue, ack, revive."""

    def __init__(
        self,
        shards: ShardMap,
        stores: dict[int, Store],
        dispatch: Dispatch,
        placement: Placement,
        settings: QueueSettings,
    ) -> None:
        self._shards = shards
        self.stores = stores
        self.dispatch = dispatch
        self.placement = placement
        self._plain = PlainEnqueues(dispatch, placement, settings)
        self._others = Enqueues(shards, dispatch, placement, settings)
        self._settings = settings
        self.acks = Acks(dispatch, settings)
        self._dequeued: dict[int, Any] = {}
        self._started: dict[int, Any] = {}
        self._revives: dict[tuple[int, bool], Batcher[ReviveEntry, str]] = {}
        for store in stores.values():
            self.join(store)

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        number, limits = store.number, self._settings.flush_limits
        self._dequeued[number] = DEQUEUED.labels(number)
        self._started[number] = SCHEDULE_TO_START_SECONDS.labels(number)
        for manages in (False, True):
            reviver = self._reviver(store, manages)
            self._revives[number, manages] = Batcher(reviver, limits, Urgency.SETTLE, store.pool)
        self.acks.join(store)
        self._plain.join(store)
        self._others.join(store)
        self.stores[number] = store

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(
        self, namespace: str, items: list[NewItem] | list[PlainItem], caller: Caller
    ) -> Even | list[Result]:
        """Take items in; one result per item, in order.

        Keyless items of a call that bring no id and no affinity go to one shard, in one transaction.
        """
        if isinstance(items[0], PlainItem):
            return await self.enqueue_plain(namespace, parts_of(items))
        return answered(await self._others.enqueue(namespace, items, caller), Urgency.ENQUEUE)

    async def enqueue_plain(self, namespace: str, parts: Sequence[PlainPart]) -> Even | list[Result]:
        """As `enqueue`, for a call of plain items, by their kinds."""
        found = await self._plain.enqueue(namespace, parts)
        return found if isinstance(found, Even) else answered(found, Urgency.ENQUEUE)

    # -- dequeue ------------------------------------------------------------------------------------------

    async def dequeue(
        self,
        namespace: str,
        demands: Sequence[Demand],
        *,
        lease_s: float | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        gone: asyncio.Future[None] | None = None,
        tenant: Tenant | None = None,
        waits: Callable[[], None] = lambda: None,
    ) -> Leased:
        """Lease ready items."""
        self.dispatch.check(namespace)
        token = _token()
        leased = await self.dispatch.dequeue(
            namespace,
            demands,
            token=token,
            lease_s=lease_s,
            worker=worker,
            wait_s=wait_s,
            gone=gone,
            tenant=tenant,
            waits=waits,
        )
        if leased.first is not None:
            late_s = _clock.wall_s() - leased.first.deliver_at.timestamp()
            self._started[shard_of(leased.first.id)].observe(max(late_s, 0.0))
        for group in leased.groups:
            self._dequeued[group.shard].inc(group.items)
            if group.again:
                REDELIVERED.labels(group.shard).inc(group.again)
        return leased

    # -- ack ----------------------------------------------------------------------------------------------

    async def ack(self, namespace: str, items: Sequence[Settled]) -> list[Result]:
        """End items under their leases; one result per item, in order."""
        if len(items) == 1:
            return answered([await self._ack_one(namespace, items[0])], Urgency.SETTLE)
        ids = canonicals([item.id for item in items])
        tokens = {token: canonical_token(token) or _token() for token in {item.lease_token for item in items}}
        results = [Result(item.id, "not_found") for item in items]

        async def at(shard: int, part: Sequence[int]) -> None:
            mine = [ids[i] or "" for i in part]
            outputs = [_output(items[i]) for i in part]
            try:
                statuses = await self.acks.at(
                    shard,
                    namespace,
                    mine,
                    [tokens[items[i].lease_token] for i in part],
                    outputs if any(outputs) else (),
                )
            except Unavailable as error:
                for i in part:
                    results[i] = refused(items[i].id, error.code, error.outcome)
                return
            for place, i in enumerate(part):
                results[i] = settled(items[i].id, "acked" if statuses is None else statuses[place])

        groups = self._by_shard(ids)
        if len(groups) == 1:
            [group] = groups.items()
            await at(*group)
        else:
            await asyncio.gather(*(at(shard, part) for shard, part in groups.items()))
        return answered(results, Urgency.SETTLE)

    async def _ack_one(self, namespace: str, item: Settled) -> Result:
        item_id = canonical(item.id)
        if item_id is None or shard_of(item_id) not in self.stores:
            return Result(item.id, "not_found")
        token = canonical_token(item.lease_token) or _token()
        outputs = () if item.output is NO_OUTPUT else (_output(item),)
        try:
            statuses = await self.acks.at(shard_of(item_id), namespace, [item_id], [token], outputs)
        except Unavailable as error:
            return refused(item.id, error.code, error.outcome)
        return settled(item.id, "acked" if statuses is None else statuses[0])

    async def ack_plain(self, namespace: str, acks: PlainAcks) -> Even | list[Result]:
        """As `ack`, for a call under one token."""
        ids, token = acks
        shard = one_shard_of(ids)
        if shard is None or shard not in self.stores:
            return await self.ack(namespace, [Settled(item_id, token) for item_id in ids])
        try:
            statuses = await self.acks.at(shard, namespace, ids, [token] * len(ids))
        except Unavailable as error:
            return answered([refused(item_id, error.code, error.outcome) for item_id in ids], Urgency.SETTLE)
        return (
            Even(ids, "acked") if statuses is None else answered(list(map(settled, ids, statuses)), Urgency.SETTLE)
        )

    def _by_shard(self, ids: Sequence[str | None]) -> dict[int, Sequence[int]]:
        """The places of ids by their shards, without those that are of no shard here; mostly all are of one."""
        shard = None if None in ids else one_shard_of([item_id or "" for item_id in ids])
        if shard is not None:
            return {shard: range(len(ids))} if shard in self.stores else {}
        groups: dict[int, list[int]] = {}
        for i, item_id in enumerate(ids):
            if item_id is not None and shard_of(item_id) in self.stores:
                groups.setdefault(shard_of(item_id), []).append(i)
        return dict(groups)

    # -- revive -------------------------------------------------------------------------------------------

    async def revive(
        self, namespace: str, items: Sequence[tuple[str, str | None]], caller: Caller
    ) -> list[Result]:
        """Open disabled items of (id, inputs); one result per item, in order."""
        results = [Result(item_id, "not_found") for item_id, _ in items]
        groups: dict[int, list[tuple[int, str, str | None]]] = {}
        for i, (item_id, inputs) in enumerate(items):
            known_id = canonical(item_id)
            if known_id is not None and shard_of(known_id) in self.stores:
                groups.setdefault(shard_of(known_id), []).append((i, known_id, inputs))

        async def flush(shard: int, part: list[tuple[int, str, str | None]]) -> None:
            try:
                self.stores[shard].pool.admit()
                namespace_id = await self.stores[shard].names.namespace_id(namespace)
                if namespace_id is None:
                    return
                entries = [(item_id, namespace_id, inputs) for _, item_id, inputs in part]
                texts = [inputs for _, _, inputs in entries]
                revives = self._revives[shard, caller.is_dag_service]
                statuses = await revives.submit(entries, namespace, texts=texts)
            except Unavailable as error:
                for i, _, _ in part:
                    results[i] = refused(items[i][0], error.code, error.outcome)
                return
            for (i, _, _), status in zip(part, statuses, strict=True):
                results[i].status = status

        await asyncio.gather(*(flush(shard, part) for shard, part in groups.items()))
        return answered(results, Urgency.SETTLE)

    def _reviver(self, store: Store, manages: bool) -> Any:
        async def flush(entries: list[ReviveEntry]) -> list[str]:
            # Once per id and namespace: another namespace's call for the same id must not take its place.
            first = {entry[:2]: entry for entry in reversed(entries)}
            ids, namespace_ids, inputs = zip(*(first[key] for key in sorted(first)), strict=True)
            with self.dispatch.handing(store.number, "revive", len(entries)) as handing:
                rows = await handing.flush(
                    lambda offers: store.revive(ids, namespace_ids, inputs, manages, offers)
                )
                open_now = [
                    (Key(row["priority"], row["deliver_at"], row["id"]), row) for row in rows if row["is_ready"]
                ]
                handing.hand([(key, row) for key, row in open_now if row.get("token")])
                ready = [Ready(row["topic_id"], key) for key, row in open_now if not row.get("token")]
                handing.saw([row.topic_id for row in ready])
            opened = {row["id"]: row for row in rows}
            self.dispatch.ready(store.number, ready)
            await self.dispatch.place_lanes(store.number)
            others = [entry[0] for entry in entries if entry[0] not in opened]
            with something_done():
                states = await store.states(others) if others else {}
                known = await store.known(others) if others else {}
                unknown = [item_id for item_id in others if item_id not in states and item_id not in known]
                known |= await store.acked_lately(unknown) if unknown else {}
            statuses = []
            for item_id, namespace_id, _ in entries:
                row = opened.get(item_id)
                if row is not None and row["namespace_id"] == namespace_id and (manages or not row["managed"]):
                    states[item_id] = {"namespace_id": namespace_id, "managed": row["managed"], "state": "enabled"}
                    del opened[item_id]
                    statuses.append("revived")
                else:
                    state = {**row, "state": "enabled"} if row is not None else states.get(item_id)
                    statuses.append(_closed_status(state, known.get(item_id), namespace_id, manages))
            return statuses

        return flush


def answered(results: list[Result], level: Urgency) -> list[Result]:
    """The results of a call; one of which nothing at all could be taken for the load is refused as a whole."""
    if results and results[0].code == "overloaded" and all(result.code == "overloaded" for result in results):
        raise overloaded(level)
    return results


def _output(item: Settled) -> str | None:
    return None if item.output is NO_OUTPUT else bytes(item.output).decode()


def _closed_status(state: Any, known: Known | None, namespace_id: int, manages: bool) -> str:
    if state is not None and state["namespace_id"] == namespace_id:
        if state["managed"] and not manages:
            return "managed"
        # A disabled item came after the look that missed it: it was not there to be opened.
        return {"dead": "finished", "disabled": "not_found"}.get(state["state"], "already_enabled")
    if known is None or known.namespace_id != namespace_id or known.outcome == "living":
        return "not_found"
    return "cancelled" if known.outcome == "cancelled" else "finished"


def _token() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
