"""Statements about items: their rows, and the narrow tables that say where each is.

A transaction takes the membership row first, then the item row. What makes items deliverable gives back their
keys, so that the caller can tell waiting consumers; forgetting to is slow, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from services.queue.model import Fold, Key, NamespaceId, Ready, TopicId
from services.queue.store.names import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, row_of, rows_of


async def lock_keys(tx: Transaction, namespace_ids: Sequence[NamespaceId], keys: Sequence[str]) -> None:
    """Hold idempotency keys, so that nobody else takes them or puts their dead items back meanwhile."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    await tx.fetch(SQL.lock_keys, namespace_ids=[namespace_ids[i] for i in order], keys=[keys[i] for i in order])


class LockedItem(NamedTuple):
    """An item whose row the transaction holds."""

    id: str
    namespace_id: NamespaceId
    topic_id: TopicId
    priority: int
    attempts: int
    max_attempts: int
    backoff: list[float] | None
    at_most_once: bool
    managed: bool
    remembered: bool
    lease_s: float
    ack_topic_id: TopicId | None
    idempotency_key: str | None
    enqueued_at: datetime
    ttl_passed: bool | None
    timeout_s: float | None
    deadline_at: datetime | None
    at: datetime

    def room_s(self, claimed_at: datetime) -> float:
        """How long its lease may go on, of a delivery that began then."""
        left_s = math.inf if self.timeout_s is None else self.timeout_s - (self.at - claimed_at).total_seconds()
        return left_s if self.deadline_at is None else min(left_s, (self.deadline_at - self.at).total_seconds())

    def has_timed_out(self, claimed_at: datetime) -> bool:
        """Whether a delivery that began then has taken all the time that one may."""
        return self.timeout_s is not None and claimed_at + timedelta(seconds=self.timeout_s) <= self.at


class ItemState(NamedTuple):
    """Where a living item is: `enabled`, `disabled` or `dead`."""

    id: str
    namespace_id: NamespaceId
    managed: bool
    state: str


class Standing(NamedTuple):
    """Where a living item is, in full."""

    id: str
    namespace: str
    topic: str
    state: str
    attempts: int
    max_attempts: int
    error: str | None
    deliver_at: datetime | None
    parked_at: datetime | None


class MadeReady(NamedTuple):
    """An item that has become deliverable."""

    id: str
    topic_id: TopicId
    priority: int
    deliver_at: datetime

    @property
    def ready(self) -> Ready:
        """Its place in its topic."""
        return Ready(self.topic_id, Key(self.priority, self.deliver_at, self.id))


class Left(NamedTuple):
    """An item that was taken out of the table of a state."""

    id: str
    state: str


class LeftPastTtl(NamedTuple):
    """The same of one whose TTL, or whose deadline, has passed."""

    id: str
    state: str
    is_deadline: bool


class _Completion(NamedTuple):
    """A completion item that is ready."""

    o_topic_id: TopicId
    o_deliver_at: datetime
    o_id: str

    @property
    def ready(self) -> Ready:
        return Ready(self.o_topic_id, Key(0, self.o_deliver_at, self.o_id))


async def states(asked: Asked, ids: Sequence[str]) -> dict[str, ItemState]:
    """Where living items are."""
    return {item.id: item for item in await rows_of(ItemState, asked, SQL.states, ids=list(ids))}


async def standings(asked: Asked, ids: Sequence[str]) -> list[Standing]:
    """Where living items are, in full; nothing is locked."""
    return await rows_of(Standing, asked, SQL.standing, ids=ids)


async def lock_items(tx: Transaction, ids: Sequence[str]) -> dict[str, LockedItem]:
    """Lock item rows, in id order; those that are gone are missing from the answer."""
    return {item.id: item for item in await rows_of(LockedItem, tx, SQL.lock_items, ids=list(ids))}


async def leave_queues(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Take the ready, deferred or parked rows of items; the state that each left."""
    return {left.id: left.state for left in await rows_of(Left, tx, SQL.leave_queues, ids=list(ids))}


async def leave_past_ttl(tx: Transaction, ids: Sequence[str]) -> list[LeftPastTtl]:
    """As `leave_queues`, of items that are ready or delayed and whose TTL has passed."""
    return await rows_of(LeftPastTtl, tx, SQL.leave_past_ttl, ids=list(ids))


async def leave_dead(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Take dead items from their places; those that still were there."""
    return [item_id for (item_id,) in await tx.fetch(SQL.leave_dead, ids=list(ids))]


async def park_dead(tx: Transaction, ids: Sequence[str]) -> None:
    """Give dead items, which were taken from them, back their places."""
    await tx.fetch(SQL.park_dead, ids=list(ids))


class Requeue(NamedTuple):
    """An item to give back: what it costs, when it is due again, and what to note on it."""

    id: str
    cost: int
    delay_s: float
    error: str | None = None
    metadata: str | None = None


async def requeue(tx: Transaction, rows: Sequence[Requeue]) -> list[Ready]:
    """Put items back into ready or deferred."""
    if not rows:
        return []
    ids, costs, delay_ss, errors, metadatas = zip(*rows, strict=True)
    columns = {"ids": ids, "costs": costs, "delay_ss": delay_ss, "errors": errors, "metadatas": metadatas}
    return [made.ready for made in await rows_of(MadeReady, tx, SQL.requeue, **columns)]


class _Told(NamedTuple):
    """How many ends were to be told; and what `tell_dead` says of an item that is there for it, or, without a
    topic, of a DAG that has ended."""

    asked: int
    topic_id: TopicId | None
    priority: int
    deliver_at: datetime
    id: str | None
    is_revived: bool
    is_ready: bool


class Buried(NamedTuple):
    """What has become ready by items that are dead now: their completions, and what their DAGs have released. Of
    their ends so many were applied (`folded`), which made so many ready or delayed and ended these DAGs."""

    ids: Sequence[str] = ()
    ready: Sequence[Ready] = ()
    folded: int = 0
    revived: int = 0
    ended: Sequence[str] = ()
    awake: Sequence[str] = ()  # failures are told to runs otherwise


async def bury(tx: Transaction, rows: Sequence[Requeue], folds: Fold) -> Buried:
    """Park items as dead."""
    if not rows:
        return Buried()
    ids, costs, _, errors, metadatas = zip(*rows, strict=True)
    columns = {"ids": ids, "costs": costs, "errors": errors, "metadatas": metadatas, "folds": folds}
    news = await rows_of(_Told, tx, SQL.bury, **columns)
    made = [one for one in news if one.topic_id is not None]
    ready = [
        Ready(one.topic_id, Key(one.priority, one.deliver_at, one.id))
        for one in news
        if one.topic_id is not None and one.id is not None and one.is_ready
    ]
    ended = [one.id for one in news if one.topic_id is None and one.id is not None]
    told = sum(not one.is_revived for one in made)
    return Buried(ids, ready, news[0].asked - told, len(made) - told, ended)


class Removal(NamedTuple):
    """An item to end: as `expired` or `cancelled`, out of which state, whether the end was a delivery, and why."""

    id: str
    outcome: str
    state: str
    charge: int = 0
    why: str | None = None


def cancelled(item_id: str, state: str) -> Removal:
    """How a cancel ends an item: under its lease it ends the delivery that was at work, which counts."""
    return Removal(item_id, "cancelled", state, int(state == "leased"))


async def remove(tx: Transaction, rows: Sequence[Removal]) -> list[Ready]:
    """End items whose membership the transaction has taken; their completions."""
    if not rows:
        return []
    ids, outcomes, left, charges, whys = zip(*rows, strict=True)
    columns = {"ids": ids, "outcomes": outcomes, "states": left, "charges": charges, "whys": whys}
    return [made.ready for made in await rows_of(_Completion, tx, SQL.remove, **columns)]


async def promote(asked: Asked, limit: int, due_from: datetime) -> list[Ready]:
    """Make ready what is due, so many items at most."""
    promoted = await rows_of(MadeReady, asked, SQL.promote, limit=limit, due_from=due_from)
    return [made.ready for made in promoted]


class PastTtl(NamedTuple):
    """An item whose TTL has passed, as a look without a lock saw it."""

    id: str
    expires_at: datetime


async def past_ttl(asked: Asked, after: tuple[datetime, str], limit: int) -> list[PastTtl]:
    """A page of items whose TTL has passed, behind a place."""
    return await rows_of(PastTtl, asked, SQL.past_ttl, after_at=after[0], after_id=after[1], limit=limit)


class ItemRow(NamedTuple):
    """An item as it is shown."""

    id_text: str
    priority: int
    attempts: int
    max_attempts: int
    enqueued_at: datetime
    deliver_at: datetime | None
    expires_at: datetime | None
    lease_s: float
    at_most_once: bool
    managed: bool
    payload: str
    metadata: str | None
    inputs: str | None
    headers: str | None
    ack_context: str | None
    error: str | None
    fairness_key: str | None
    topic: str
    namespace: str
    ack_topic: str | None
    ack_namespace: str | None
    state: str


class ItemPage(NamedTuple):
    """Items by id, the bytes that they take, and whether there were more that take too many."""

    items: list[ItemRow]
    bytes: int
    is_cut: bool


class PageOf(NamedTuple):
    """Which items a page shows (None: of any topic, in any state), behind which, and how many at most."""

    namespace: str
    topic: str | None
    state: str | None
    after_id: str
    limit: int
    scan_max: int
    bytes_max: int


async def item(asked: Asked, item_id: str) -> ItemRow | None:
    """One that has not ended."""
    return await row_of(ItemRow, asked, SQL.item, id=item_id)


async def page(asked: Asked, wanted: PageOf) -> ItemPage:
    """A page of items; at least one, if any is there."""
    rows = await asked.fetch(SQL.page, **wanted._asdict())
    items = [ItemRow(*row[1:-3]) for row in rows]
    if not rows:
        return ItemPage([], 0, is_cut=False)
    return ItemPage(items, rows[-1]["bytes_so_far"], is_cut=rows[-1]["nth"] < rows[-1]["there"])


async def page_end(asked: Asked, after_id: str, scan_max: int) -> str | None:
    """The last id that a page of `scan_max` rows looks at; None: the table ends before."""
    rows = await asked.fetch(SQL.page_end, after_id=after_id, scan_max=scan_max)
    return rows[0][0] if rows else None


# -- tombstones: cancels of ids that have not been seen ---------------------------------------------------------


async def place_tombstones(tx: Transaction, ids: Sequence[str], namespace_id: NamespaceId) -> list[str]:
    """Item rows in the place of ids that are not there; which that were."""
    namespace_ids = [namespace_id] * len(ids)
    return [row[0] for row in await tx.fetch(SQL.place_tombstones, ids=ids, namespace_ids=namespace_ids)]


async def charge_tombstones(tx: Transaction, namespace_id: NamespaceId, cancels: int, cancels_max: int) -> bool:
    """Count a namespace's cancels of unseen ids; whether it may have so many."""
    charged = await tx.row(
        SQL.charge_tombstones, namespace_id=namespace_id, cancels=cancels, cancels_max=cancels_max
    )
    return charged is not None


async def bury_tombstones(tx: Transaction, ids: Sequence[str]) -> None:
    """The ids are remembered as cancelled, their rows go."""
    await tx.fetch(SQL.bury_tombstones, ids=ids)


async def take_up_tombstones(tx: Transaction, ids: Sequence[str]) -> None:
    """Their rows go, and nothing is remembered."""
    await tx.fetch(SQL.take_up_tombstones, ids=ids)


# -- failed deliveries ------------------------------------------------------------------------------------------


class FailedAttempt(NamedTuple):
    """A delivery of a DAG's item that failed."""

    attempt: int
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str | None
    worker: str | None


class AttemptToLog(NamedTuple):
    """As `FailedAttempt`, to be written; it ends now."""

    item_id: str
    namespace_id: NamespaceId
    attempt: int
    started_at: datetime
    outcome: str
    error: str | None
    worker: str | None


async def log_attempts(tx: Transaction, attempts: Sequence[AttemptToLog]) -> None:
    """Note deliveries that failed."""
    item_ids, namespace_ids, numbers, started_ats, outcomes, errors, workers = zip(*attempts, strict=True)
    await tx.fetch(
        SQL.log_attempts,
        item_ids=item_ids,
        namespace_ids=namespace_ids,
        attempts=numbers,
        started_ats=started_ats,
        outcomes=outcomes,
        errors=errors,
        workers=workers,
    )


async def attempts_of_many(
    asked: Asked, item_ids: Sequence[str], namespace: str, rows_max: int, error_chars: int
) -> dict[str, list[FailedAttempt]]:
    """The same of many items, by id: the last `rows_max` of each, with the end of its error."""
    found: dict[str, list[FailedAttempt]] = {}
    given = {"item_ids": item_ids, "namespace": namespace, "rows_max": rows_max, "error_chars": error_chars}
    for item_id, *attempt in await asked.fetch(SQL.attempts_of_many, **given):
        found.setdefault(item_id, []).append(FailedAttempt(*attempt))
    return found


async def attempts_of(asked: Asked, item_id: str, namespace: str, rows_max: int) -> list[FailedAttempt]:
    """The logged deliveries of an item, living or not, in the order of their ends."""
    return await rows_of(
        FailedAttempt, asked, SQL.attempts_of, item_id=item_id, namespace=namespace, rows_max=rows_max
    )
