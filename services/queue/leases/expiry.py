"""What time does to items that nobody settles: leases that ran out, and times to live that passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.leases import failed_attempts
from services.queue.leases.dag_news import DagNews
from services.queue.leases.held_items import is_last_attempt, pause_s
from services.queue.model import Ready
from services.queue.settings import QueueSettings
from services.queue.store import items as rows
from services.queue.store import leases
from services.queue.store.items import Buried, LockedItem, Removal, Requeue
from services.queue.store.leases import ExpiredGroup, Holding, SweepBounds
from services.queue.store.shard_store import Store
from shared.errors import Invalid, Unavailable
from shared.log import log
from shared.metrics import LEASE_EXPIRED
from shared.postgres.connections import Transaction

PUT_OFF_S = 60.0

_PAST_TTL, _PAST_DEADLINE = "its time to live passed", "its deadline passed"


class Expiry:
    """Sweeps of leases and of times to live: what a nack or a cancel does, in nobody's name."""

    def __init__(self, dispatch: Dispatch, dag_news: DagNews, settings: QueueSettings) -> None:
        self._dispatch = dispatch
        self._dag_news = dag_news
        self._settings = settings

    async def sweep(self, store: Store, bounds: SweepBounds) -> Swept:
        """Take back leases of one shard that ran out.

        Raises:
            Invalid: the database refuses to take one of several items back. One that is refused alone keeps its
                lease a while longer, so that it holds up no other.
        """
        try:
            swept = await store.pool.transaction(lambda tx: self._sweep(tx, bounds))
        except Invalid:
            if bounds.items_max > 1:
                raise
            swept = await store.pool.transaction(lambda tx: _put_off(tx, bounds))
        LEASE_EXPIRED.labels(store.number).inc(swept.expired)
        self._dispatch.ready(store.number, [*swept.ready, *swept.buried.ready])
        self._dag_news.gone_on(store.number, swept.buried.ids, swept.buried)
        await self._dispatch.place_lanes(store.number)
        return swept

    async def expire(self, store: Store, ids: Sequence[str]) -> int:
        """End items whose TTL has passed, of those that are not leased; how many that were."""

        async def work(tx: Transaction) -> tuple[int, list[Ready]]:
            left = await rows.leave_past_ttl(tx, ids)
            past = [Removal(item.id, "expired", item.state, why=_past(item.is_deadline)) for item in left]
            ready = await rows.remove(tx, past)
            return len(left), ready

        try:
            expired, ready = await store.pool.transaction(work)
        except Invalid:
            if len(ids) == 1:
                log.error("an item past its TTL cannot be ended", shard=store.number, item=ids[0])
                return 0
            return sum([await self.expire(store, [item_id]) for item_id in ids])
        self._dispatch.ready(store.number, ready)
        return expired

    async def expire_now(self, store: Store, ids: Sequence[str]) -> None:
        """As `expire`, for items that have just been given back. What fails is left to the reaper's next walk."""
        with suppress(Unavailable):
            await self.expire(store, ids)

    async def _sweep(self, tx: Transaction, bounds: SweepBounds) -> Swept:
        groups = await leases.take_expired(tx, bounds)
        holdings = {item_id: group.holding for group in groups for item_id in group.ids}
        items = await rows.lock_items(tx, list(holdings)) if holdings else {}
        acked = [
            (item_id, group.namespace_id) for group in groups for item_id in group.ids if item_id not in items
        ]
        if acked:  # between the look of `take_expired` and its lock
            await leases.remember_acked(tx, *zip(*acked, strict=True))
        return _swept(groups, bounds, len(items), *await self._take_back(tx, items, holdings))

    async def _take_back(
        self, tx: Transaction, items: Mapping[str, LockedItem], holdings: Mapping[str, Holding]
    ) -> tuple[list[Ready], Buried]:
        """What becomes of items whose leases ran out: deliverable again, dead or expired."""
        back, dead, gone = [], [], []
        for item_id, item in items.items():
            if not holdings[item_id].was_shown:
                gone.append(Removal(item_id, "expired", "leased", why=_past(item.deadline_at is not None)))
            elif item.at_most_once:
                gone.append(Removal(item_id, "expired", "leased", 1, "the lease of its only delivery ran out"))
            elif item.ttl_passed:
                gone.append(Removal(item_id, "expired", "leased", 1, _past(item.deadline_at is not None)))
            elif is_last_attempt(item):
                why = _too_long(item, holdings[item_id]) or "the lease ran out"
                dead.append(Requeue(item_id, 1, 0, f"{why} on the last attempt"))
            else:
                back.append(Requeue(item_id, 1, pause_s(item), _too_long(item, holdings[item_id])))
        ended = [
            (row, "timed_out" if items[row.id].has_timed_out(holdings[row.id].claimed_at) else "lease_expired")
            for row in (*back, *dead)
        ]
        await failed_attempts.log(tx, ended, items, holdings, self._settings.logged_attempts_max)
        ready = await rows.requeue(tx, back)
        buried = await rows.bury(tx, dead, self._dag_news.folds())
        return ready + await rows.remove(tx, gone), buried


def _past(is_deadline: bool) -> str:
    return _PAST_DEADLINE if is_deadline else _PAST_TTL


def _too_long(item: LockedItem, holding: Holding) -> str | None:
    """What is said of a delivery that has taken all its time."""
    if not item.has_timed_out(holding.claimed_at):
        return None
    return f"timed out: the attempt took longer than {item.timeout_s:g} s"


class Swept(NamedTuple):
    """What a sweep took back, what of it is ready now, what it has buried, how many ids it took out of groups
    (most were acked), whose group was the last, and whether it came to a bound, so that there may be more."""

    expired: int
    ready: list[Ready]
    buried: Buried
    ids: int
    last_namespace_id: int
    was_full: bool


def _swept(
    groups: Sequence[ExpiredGroup], bounds: SweepBounds, expired: int, ready: list[Ready], buried: Buried
) -> Swept:
    ids, living = sum(group.ids_taken for group in groups), sum(len(group.ids) for group in groups)
    was_full = (
        len(groups) >= min(bounds.groups_max, bounds.look_max)
        or ids >= bounds.ids_max
        or living >= bounds.items_max
    )
    return Swept(expired, ready, buried, ids, groups[-1].namespace_id if groups else 0, was_full)


async def _put_off(tx: Transaction, bounds: SweepBounds) -> Swept:
    groups = await leases.take_expired(tx, bounds)
    for group in groups:
        for item_id in group.ids:
            log.error("an item whose lease ran out cannot be taken back", item=item_id)
            where = (group.namespace_id, group.topic_id, item_id, group.holding)
            await leases.lease_again(tx, [(group.token, PUT_OFF_S, *where)])
    return _swept(groups, bounds, 0, [], Buried())
