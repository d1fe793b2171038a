"""Nack: leased items are given back, at once or later, or failed for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.gates.topic_gates import Gates
from services.queue.leases import failed_attempts
from services.queue.leases.dag_news import DagNews
from services.queue.leases.expiry import Expiry
from services.queue.leases.held_items import each_held, is_last_attempt, lock_held, lost_statuses, pause_s
from services.queue.model import NamespaceId, Ready, Result, TopicId
from services.queue.settings import QueueSettings
from services.queue.store.items import Buried, LockedItem, Requeue, bury, requeue
from services.queue.store.leases import leave_groups
from services.queue.store.shard_store import Store
from shared.errors import Unavailable, something_done
from shared.ids import ShardNo
from shared.log import log
from shared.metrics import DEAD, NACKED
from shared.postgres.connections import Transaction

# A topic that is slowed, or (not empty) a key of it.
Slowed = tuple[TopicId, str]


class Nack(NamedTuple):
    """One element of a nack call. `is_untold`: nobody knows of the lease, so it counts as no delivery. `is_begun`:
    somebody may, so what is delivered at most once stays leased."""

    id: str
    lease_token: str
    delay_s: float | None
    metadata: str | None
    error: str | None
    final: bool
    costs_attempt: bool
    throttle_s: float | None = None
    throttle_key: str | None = None
    is_untold: bool = False
    is_begun: bool = False

    def named(self, item_id: str, lease_token: str) -> Self:
        """The same, its names in their canonical forms."""
        return self._replace(id=item_id, lease_token=lease_token)


class _GivenBack(NamedTuple):
    """What became of each element, by its place; and what that made ready."""

    statuses: dict[int, str]
    ready: list[Ready]
    buried: Buried
    past_ttl: list[str]
    throttles: dict[Slowed, float]


class Nacks:
    """Calls of the verb."""

    def __init__(
        self,
        stores: Mapping[ShardNo, Store],
        dispatch: Dispatch,
        gates: Gates,
        expiry: Expiry,
        dag_news: DagNews,
        settings: QueueSettings,
    ) -> None:
        self._stores = stores
        self._dispatch = dispatch
        self._gates = gates
        self._expiry = expiry
        self._dag_news = dag_news
        self._settings = settings

    async def nack(self, namespace: str, items: Sequence[Nack]) -> list[Result]:
        """Give leased items back, or fail them for good; one result per item."""
        return await each_held(self._stores, namespace, items, self._nack_at)

    async def _nack_at(self, store: Store, namespace_id: NamespaceId, nacks: list[Nack]) -> dict[int, str]:
        async def work(tx: Transaction) -> _GivenBack:
            throttles: dict[Slowed, float] = {}
            held, items, holdings = await lock_held(tx, namespace_id, nacks)
            held = [at for at in held if not (nacks[at].is_begun and items[nacks[at].id].at_most_once)]
            back: list[Requeue] = []
            dead: list[Requeue] = []
            statuses: dict[int, str] = {}
            for position in held:
                nack = nacks[position]
                item = items[nack.id]
                row = _given_back(nack, item)
                is_dead = nack.final or (nack.costs_attempt and is_last_attempt(item))
                is_dead |= item.at_most_once and not nack.is_untold
                (dead if is_dead else back).append(row)
                statuses[position] = "dead" if is_dead else "requeued"
                if nack.throttle_s:
                    slowed = item.topic_id, nack.throttle_key or ""
                    throttles[slowed] = max(nack.throttle_s, throttles.get(slowed, 0.0))
            pairs = [(nacks[position].lease_token, nacks[position].id) for position in held]
            if pairs:
                await leave_groups(tx, pairs)
            ended = [(row, "failed") for row in back if row.cost] + [(row, "dead") for row in dead]
            await failed_attempts.log(tx, ended, items, holdings, self._settings.logged_attempts_max)
            ready = await requeue(tx, back)
            buried = await bury(tx, dead, self._dag_news.folds())
            DEAD.labels(store.number).inc(len(dead))
            past_ttl = [row.id for row in back if items[row.id].ttl_passed]
            return _GivenBack(statuses, ready, buried, past_ttl, throttles)

        statuses, ready, buried, past_ttl, throttles = await store.pool.transaction(work)
        NACKED.labels(store.number).inc(len(statuses))
        if throttles:
            await self._throttle(store, throttles)
        if past_ttl:
            await self._expiry.expire_now(store, past_ttl)
        self._dispatch.ready(store.number, [*ready, *buried.ready])
        self._dag_news.gone_on(store.number, buried.ids, buried)
        await self._dispatch.place_lanes(store.number)
        with something_done():
            return statuses | await lost_statuses(store, namespace_id, nacks, statuses)

    async def _throttle(self, store: Store, throttles: Mapping[Slowed, float]) -> None:
        """Keep topics, or keys of them, from being handed out. The items are given back whatever becomes of it."""
        try:
            names = await store.names.name_of({topic_id for topic_id, _ in throttles})
            for (topic_id, key), throttle_s in throttles.items():
                if topic_id in names:
                    await self._gates.slow(*names[topic_id], throttle_s, key)
        except Unavailable as error:
            log.warning("a topic is not throttled: its home does not answer", detail=error.detail)


def _given_back(nack: Nack, item: LockedItem) -> Requeue:
    cost = 1 if nack.costs_attempt else 0
    delay_s = (pause_s(item) if cost else 0.0) if nack.delay_s is None else nack.delay_s
    return Requeue(item.id, cost, delay_s, nack.error, nack.metadata)
