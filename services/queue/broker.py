"""What each verb does to items. Shapes are settled before (routes), statements after (store)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from services.queue.dispatch import Dispatch
from services.queue.enqueues import Enqueues
from services.queue.leased import Leased
from services.queue.model import (
    NO_OUTPUT,
    Demand,
    Key,
    NewItem,
    PlainItem,
    Ready,
    Result,
    Settled,
    refused,
)
from services.queue.placement import Placement
from services.queue.plain import PlainEnqueues
from services.queue.quotas import Tenant
from services.queue.settings import QueueSettings
from services.queue.store import Known, Store
from shared.access import Caller
from shared.batcher import Batcher
from shared.clock import SystemClock
from shared.endings import Endings
from shared.errors import Unavailable, something_done
from shared.ids import KIN, canonical, canonical_token, canonicals, shard_of, time_ms_of
from shared.lanes import Urgency
from shared.metrics import (
    ACKED,
    DAG_SECONDS,
    DEQUEUED,
    FOLDED,
    FOLDED_RELEASES,
    REDELIVERED,
    SCHEDULE_TO_START_SECONDS,
)
from shared.shards import ShardMap
from shared.shedding import overloaded

AckEntry = tuple[str, str, int, str | None]
ReviveEntry = tuple[str, int, str | None, bool]

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
        self.endings = Endings(settings.redis_url, settings.redis_prefix)
        self._dequeued: dict[int, Any] = {}
        self._acked: dict[int, Any] = {}
        self._started: dict[int, Any] = {}
        self._acks: dict[tuple[int, bool], Batcher[AckEntry, str]] = {}
        self._revives: dict[int, Batcher[ReviveEntry, str]] = {}
        for store in stores.values():
            self.join(store)

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        number, limits = store.number, self._settings.flush_limits
        self._dequeued[number] = DEQUEUED.labels(number)
        self._acked[number] = ACKED.labels(number)
        self._started[number] = SCHEDULE_TO_START_SECONDS.labels(number)
        self._revives[number] = Batcher(self._reviver(store), limits, Urgency.SETTLE, store.pool)
        for relaxed in (False, True):
            acker, pool = self._acker(store, relaxed), store.shard.relaxed if relaxed else store.pool
            # A second ack of a DAG would find its lock taken, and leave its end to the DAG service.
            self._acks[number, relaxed] = Batcher(acker, limits, Urgency.SETTLE, pool, tags=_kins)
        self._plain.join(store)
        self._others.join(store)
        self.stores[number] = store

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(
        self, namespace: str, items: list[NewItem] | list[PlainItem], caller: Caller
    ) -> list[Result]:
        """Take items in; one result per item, in order.

        Keyless items of a call that bring no id and no affinity go to one shard, in one transaction.
        """
        if isinstance(items[0], PlainItem):
            return answered(await self._plain.enqueue(namespace, items), Urgency.ENQUEUE)
        return answered(await self._others.enqueue(namespace, items, caller), Urgency.ENQUEUE)

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
        relaxed = namespace == "_dag"
        ids = canonicals([item.id for item in items])
        tokens = {token: canonical_token(token) or _token() for token in {item.lease_token for item in items}}
        groups = self._by_shard(ids)

        async def flush(shard: int, part: Sequence[int]) -> list[Result]:
            try:
                names = self.stores[shard].names
                namespace_id = names.known_namespace(namespace)
                if namespace_id is None:
                    self.stores[shard].pool.admit()  # else the flush asks
                    namespace_id = await names.namespace_id(namespace)
                if namespace_id is None:
                    return [Result(items[i].id, "not_found") for i in part]
                entries = [
                    (ids[i] or "", tokens[items[i].lease_token], namespace_id, _text(items[i].output))
                    for i in part
                ]
                statuses = await self._acks[shard, relaxed].submit(entries, namespace)
            except Unavailable as error:
                return [refused(items[i].id, error.code, error.outcome) for i in part]
            return list(map(Result, [items[i].id for i in part], statuses))

        if len(groups) == 1:
            [(shard, part)] = groups.items()
            if len(part) == len(items):
                return answered(await flush(shard, part), Urgency.SETTLE)
        results = [Result(item.id, "not_found") for item in items]
        found = await asyncio.gather(*(flush(shard, part) for shard, part in groups.items()))
        for part, of_part in zip(groups.values(), found, strict=True):
            for i, result in zip(part, of_part, strict=True):
                results[i] = result
        return answered(results, Urgency.SETTLE)

    def _tell_ended(self, dag_ids: Sequence[str]) -> None:
        self.endings.tell(dag_ids)
        now_s = _clock.wall_s()
        for dag_id in dag_ids:
            DAG_SECONDS.observe(max(0.0, now_s - time_ms_of(dag_id) / 1000))

    def _by_shard(self, ids: Sequence[str | None]) -> dict[int, Sequence[int]]:
        """The places of ids by their shards, without those that are of no shard here; mostly all are of one."""
        groups: dict[int, list[int]] = {}
        if len({item_id and item_id[-3:] for item_id in ids}) == 1 and ids[0] is not None:
            shard = shard_of(ids[0])
            return {shard: range(len(ids))} if shard in self.stores else {}
        for i, item_id in enumerate(ids):
            if item_id is not None and shard_of(item_id) in self.stores:
                groups.setdefault(shard_of(item_id), []).append(i)
        return dict(groups)

    def _acker(self, store: Store, relaxed: bool) -> Any:
        async def flush_with_care(entries: list[AckEntry]) -> list[str]:
            statuses = await flush(entries)
            lost = [position for position, status in enumerate(statuses) if status == "lease_lost"]
            if lost:
                # An extend of the same holder may have moved its lease while this waited for it: look afresh.
                with something_done():
                    again = await flush([entries[i] for i in lost])
                for position, status in zip(lost, again, strict=True):
                    if status in ("acked", "already_acked"):
                        statuses[position] = status
            return statuses

        async def flush(entries: list[AckEntry]) -> list[str]:
            ids, tokens, namespace_ids, outputs = zip(*entries, strict=True)
            if namespace_ids.count(namespace_ids[0]) < len(entries) and _is_shared(tokens, namespace_ids):
                return await flush_apart(entries)
            given = {}
            if outputs.count(None) < len(outputs):
                given = {item: output for item, output in zip(ids, outputs, strict=True) if output is not None}
            with self.dispatch.handing(store.number, "ack", len(entries)) as handing:
                flushed = await handing.flush(
                    lambda offers: store.ack(
                        ids,
                        tokens,
                        namespace_ids,
                        given,
                        relaxed=relaxed,
                        offers=offers,
                        ends=self.endings.is_heard,
                    )
                )
                handing.hand(flushed.handed)
                handing.saw([ready.topic_id for ready in flushed.ready])
            self.dispatch.ready(store.number, flushed.ready)
            if flushed.folded:
                FOLDED.labels(store.number).inc(flushed.folded)
                FOLDED_RELEASES.labels(store.number).inc(flushed.revived)
            if flushed.ended:
                self._tell_ended(flushed.ended)
            if flushed.delayed:
                await self.dispatch.place_lanes(store.number)
            if flushed.acked is None:
                self._acked[store.number].inc(len(entries))
                return ["acked"] * len(entries)
            self._acked[store.number].inc(len(flushed.acked))
            return await self._ack_statuses(store, entries, flushed.acked, flushed.held or set())

        async def flush_apart(entries: list[AckEntry]) -> list[str]:
            """Namespace by namespace: one of them names another's token, which must not touch the other's acks."""
            statuses: dict[int, str] = {}
            for namespace_id in {entry[2] for entry in entries}:
                places = [i for i, entry in enumerate(entries) if entry[2] == namespace_id]
                statuses |= zip(places, await flush([entries[i] for i in places]), strict=True)
            return [statuses[i] for i in range(len(entries))]

        return flush_with_care

    async def _ack_statuses(
        self, store: Store, entries: list[AckEntry], acked: set[str], held: set[str]
    ) -> list[str]:
        # Also ids acked in this very flush: a superseded holder may share it with the winner.
        with something_done():
            known = await store.known(
                [id_ for id_, token, _, _ in entries if id_ not in acked or id_ + token not in held]
            )
        statuses = []
        for item_id, token, namespace_id, _ in entries:
            if item_id + token in held and item_id in acked:
                acked.discard(item_id)
                known[item_id] = Known(namespace_id, "acked")
                statuses.append("acked")
            elif item_id + token in held and not _was_cancelled(known.get(item_id)):
                statuses.append("already_acked")
            else:
                statuses.append(lost_status(known.get(item_id), namespace_id))
        return statuses

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
                manages = caller.is_dag_service
                entries = [(item_id, namespace_id, inputs, manages) for _, item_id, inputs in part]
                statuses = await self._revives[shard].submit(entries, namespace)
            except Unavailable as error:
                for i, _, _ in part:
                    results[i] = refused(items[i][0], error.code, error.outcome)
                return
            for (i, _, _), status in zip(part, statuses, strict=True):
                results[i].status = status

        await asyncio.gather(*(flush(shard, part) for shard, part in groups.items()))
        return answered(results, Urgency.SETTLE)

    def _reviver(self, store: Store) -> Any:
        async def flush(entries: list[ReviveEntry]) -> list[str]:
            # Once per id and claim to it: another namespace's call for the same id must not take its place.
            first = {(entry[0], entry[1], entry[3]): entry for entry in reversed(entries)}
            ids, namespace_ids, inputs, may_manage = zip(*(first[key] for key in sorted(first)), strict=True)
            with self.dispatch.handing(store.number, "revive", len(entries)) as handing:
                rows = await handing.flush(
                    lambda offers: store.revive(ids, namespace_ids, inputs, may_manage, offers)
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
                known |= await _acked_lately(store, entries, {*opened, *states, *known})
            statuses = []
            for item_id, namespace_id, _, manages in entries:
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


def _is_shared(tokens: Sequence[str], namespace_ids: Sequence[int]) -> bool:
    """Whether one token is named by several namespaces."""
    return len(set(zip(tokens, namespace_ids, strict=True))) > len(set(tokens))


def _kins(entries: Sequence[AckEntry]) -> set[str]:
    return {entry[0][KIN] for entry in entries}


async def _acked_lately(store: Store, entries: Sequence[ReviveEntry], found: set[str]) -> dict[str, Known]:
    """Ids that nothing else knows, of those acked under a lease that has not run out yet."""
    unknown: dict[int, list[str]] = {}
    for item_id, namespace_id, _, _ in entries:
        if item_id not in found:
            unknown.setdefault(namespace_id, []).append(item_id)
    return {
        item_id: Known(namespace_id, "acked")
        for namespace_id, ids in unknown.items()
        for item_id in await store.acked_lately(ids, namespace_id)
    }


def answered(results: list[Result], level: Urgency) -> list[Result]:
    """The results of a call; one of which nothing at all could be taken for the load is refused as a whole."""
    if results and results[0].code == "overloaded" and all(result.code == "overloaded" for result in results):
        raise overloaded(level)
    return results


def lost_status(known: Known | None, namespace_id: int) -> str:
    """What the holder of a dead token is told of its item."""
    if known is None or known.namespace_id != namespace_id:
        return "not_found"
    return "cancelled" if known.outcome == "cancelled" else "lease_lost"


def _was_cancelled(known: Known | None) -> bool:
    return known is not None and known.outcome == "cancelled"


def _closed_status(state: Any, known: Known | None, namespace_id: int, manages: bool) -> str:
    if state is not None and state["namespace_id"] == namespace_id:
        if state["managed"] and not manages:
            return "managed"
        # A disabled item came after the look that missed it: it was not there to be opened.
        return {"dead": "finished", "disabled": "not_found"}.get(state["state"], "already_enabled")
    if known is None or known.namespace_id != namespace_id or known.outcome == "living":
        return "not_found"
    return "cancelled" if known.outcome == "cancelled" else "finished"


def _text(output: msgspec.Raw) -> str | None:
    return None if output is NO_OUTPUT else bytes(output).decode()


def _token() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
