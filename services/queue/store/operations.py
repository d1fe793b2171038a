"""Statements about operations: one row on each shard says what is to be done to which items, and what was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.queue.model import NamespaceId, Ready, TopicId
from services.queue.store.items import MadeReady, lock_keys
from services.queue.store.names import SQL
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, column_of, only_row_of, row_of, rows_of
from shared.shards.map_file import slot_of


class TopicScope(NamedTuple):
    """The numbers of a namespace and a topic on a shard (None: not here, or not asked for), and what they hold."""

    namespace_id: NamespaceId | None
    topic_id: TopicId | None
    at: datetime
    ready: int
    delayed: int
    leased: int
    disabled: int
    dead: int

    def held(self, states: Sequence[str]) -> int:
        """How many items that is, in these states."""
        counts = self._asdict()
        return sum(counts[state] for state in states)


class OperationRow(NamedTuple):
    """An operation as one shard has it."""

    id: str
    namespace: str
    namespace_id: NamespaceId | None
    topic_id: TopicId | None
    kind: str
    filter: str
    state: str
    cursor: str
    total: int
    scanned: int
    changed: int
    skipped: int
    shards: list[ShardNo]
    unplaced: list[ShardNo]
    cutoff: datetime
    requested_at: datetime
    finished_at: datetime | None


class NewOperation(NamedTuple):
    """A row to be written; `cutoff` None: now."""

    id: str
    namespace: str
    namespace_id: NamespaceId | None
    topic_id: TopicId | None
    kind: str
    filter: str
    state: str
    total: int
    shards: Sequence[ShardNo]
    unplaced: Sequence[ShardNo]
    cutoff: datetime | None


class Waiting(NamedTuple):
    """Whether there are operations to carry on, and such that could not be written to all shards."""

    running: bool
    unplaced: bool


class Progress(NamedTuple):
    """What a chunk adds to its row."""

    cursor: str
    scanned: int
    changed: int
    skipped: int
    finished: bool


class FoundItem(NamedTuple):
    """An item that a walk meets; `since`: since when it is where the walk found it."""

    id: str
    topic_id: TopicId
    priority: int
    deliver_at: datetime | None
    parked_at: datetime | None
    managed: bool
    enqueued_at: datetime
    since: datetime
    metadata: str | None
    error_head: str | None
    error_tail: str | None
    state: str
    dag: str | None


class TakenOrNot(NamedTuple):
    """An item that is in the table of a state, and whether it was taken from there."""

    id: str
    state: str
    taken: bool


class _Redriven(NamedTuple):
    """A dead item that was put back."""

    id: str
    topic_id: TopicId
    priority: int
    deliver_at: datetime
    is_ready: bool


async def scope_of(asked: Asked, namespace: str, topic: str | None) -> TopicScope:
    """What names stand for on a shard, and what they hold."""
    return await only_row_of(TopicScope, asked, SQL.operation_scope, namespace=namespace, topic=topic)


async def place(asked: Asked, row: NewOperation, running_max: int) -> bool:
    """Write a row; False: the namespace has too many running already, or this one is here."""
    return bool(await asked.fetch(SQL.place_operation, **row._asdict(), running_max=running_max))


async def is_anybodys(asked: Asked, operation_id: str) -> bool:
    """Whether an operation has this id, in any namespace."""
    return bool(await asked.fetch(SQL.is_operation, id=operation_id))


async def waiting(asked: Asked, age_s: float) -> Waiting:
    """Whether there is anything to carry on."""
    return await only_row_of(Waiting, asked, SQL.operations_wait, age_s=age_s)


async def lock_next(tx: Transaction) -> OperationRow | None:
    """The one that has waited longest; what another process is at is passed over."""
    return await row_of(OperationRow, tx, SQL.next_operation)


async def lock(tx: Transaction, operation_id: str) -> OperationRow | None:
    """One that is running."""
    return await row_of(OperationRow, tx, SQL.lock_operation, id=operation_id)


async def lock_unplaced(tx: Transaction, age_s: float) -> OperationRow | None:
    """One that could not be written to all shards when it was asked for."""
    return await row_of(OperationRow, tx, SQL.lock_unplaced, age_s=age_s)


async def advance(tx: Transaction, operation_id: str, progress: Progress) -> None:
    """Add what a chunk did."""
    await tx.fetch(SQL.advance_operation, id=operation_id, **progress._asdict())


async def read(asked: Asked, ids: Sequence[str], namespace: str) -> list[OperationRow]:
    """Those of a namespace that are here."""
    return await rows_of(OperationRow, asked, SQL.operations, ids=list(ids), namespace=namespace)


async def listed(asked: Asked, namespace: str, before_id: str, limit: int) -> list[str]:
    """Ids of a namespace's operations, newest first."""
    rows = await asked.fetch(SQL.list_operations, namespace=namespace, before_id=before_id, limit=limit)
    return [row[0] for row in rows]


async def stop(asked: Asked, operation_id: str, namespace: str) -> None:
    """No further chunk of it is done here."""
    await asked.fetch(SQL.stop_operation, id=operation_id, namespace=namespace)


async def set_unplaced(asked: Asked, operation_id: str, unplaced: Sequence[ShardNo]) -> None:
    """On which shards its row is still to be written."""
    await asked.fetch(SQL.set_unplaced, id=operation_id, unplaced=list(unplaced))


# -- walks ------------------------------------------------------------------------------------------------------


async def items_by_id(
    asked: Asked, scope: tuple[int | None, int | None], after_id: str, limit: int, scan_max: int
) -> tuple[list[FoundItem], str | None]:
    """Items of (namespace_id, topic_id or all) behind an id, and where the look ended (None: at the end)."""
    found = await asked.fetch(
        SQL.look_by_id,
        namespace_id=scope[0],
        topic_id=scope[1],
        after_id=after_id,
        limit=limit,
        scan_max=scan_max,
    )
    items = [FoundItem(*row[1:]) for row in found if row["id"] is not None]
    return items, items[-1].id if len(items) == limit else found[0]["last_id"]


async def ready_items(
    asked: Asked, topic_id: TopicId | None, after: tuple[int, datetime, str], limit: int
) -> list[FoundItem]:
    """Ready items of a topic behind a place, in order of service."""
    return await rows_of(
        FoundItem,
        asked,
        SQL.look_at_ready,
        topic_id=topic_id,
        after_priority=after[0],
        after_deliver_at=after[1],
        after_id=after[2],
        limit=limit,
    )


async def dead_items(
    asked: Asked,
    namespace_id: NamespaceId | None,
    topic_ids: tuple[int, int],
    after: tuple[int, datetime, str],
    limit: int,
) -> list[FoundItem]:
    """Dead items of a range of a namespace's topics behind a place, by topic and time of death."""
    return await rows_of(
        FoundItem,
        asked,
        SQL.look_at_dead,
        namespace_id=namespace_id,
        first_topic_id=topic_ids[0],
        last_topic_id=topic_ids[1],
        after_topic_id=after[0],
        after_at=after[1],
        after_id=after[2],
        limit=limit,
    )


async def take(tx: Transaction, ids: Sequence[str], states: Sequence[str]) -> list[TakenOrNot]:
    """Take items out of the tables of these states; where those are that are in another's."""
    return await rows_of(TakenOrNot, tx, SQL.take, ids=ids, states=list(states))


class DeadWithKey(NamedTuple):
    """A dead item that was made with an idempotency key."""

    id: str
    namespace_id: NamespaceId
    namespace: str
    key: str

    @property
    def slot(self) -> int:
        """Where the key has its home."""
        return slot_of(self.namespace, self.key)


async def _without_keys(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Dead items whose keys others have taken since, as `unique` lets them; the others' keys are held."""
    held = await rows_of(DeadWithKey, tx, SQL.hold_dead, ids=sorted(ids))
    if not held:
        return set()
    namespace_ids, keys = [item.namespace_id for item in held], [item.key for item in held]
    await lock_keys(tx, namespace_ids, keys)
    item_ids, slots = [item.id for item in held], [item.slot for item in held]
    without = await column_of(
        str, tx, SQL.without_keys, ids=item_ids, namespace_ids=namespace_ids, keys=keys, slots=slots
    )
    return set(without)


async def redrive(tx: Transaction, ids: Sequence[str]) -> tuple[int, list[Ready]]:
    """Put dead items back, with fresh attempts, but those that would be the second ones of their unique keys; how
    many, and those that are ready now."""
    without = await _without_keys(tx, ids)
    ids = [item_id for item_id in ids if item_id not in without]
    back = await rows_of(_Redriven, tx, SQL.redrive, ids=list(ids))
    return len(back), [MadeReady(*item[:4]).ready for item in back if item.is_ready]
