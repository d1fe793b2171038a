"""Statements about what is kept only for a while, and about when the next of anything is due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.queue.model import NamespaceId
from services.queue.store.names import SQL
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, only_row_of, rows_of


class NextDue(NamedTuple):
    """The next end of a delay, of a lease and of a TTL (None: there is none), and whether operations wait."""

    at: datetime
    due_at: datetime | None
    expires_at: datetime | None
    ttl_at: datetime | None
    operations: bool


class FarKey(NamedTuple):
    """An idempotency key whose item lives on another shard."""

    lives_at: ShardNo
    namespace_id: NamespaceId
    key: str
    id: str
    is_free: bool


async def next_due(
    asked: Asked, delays_from: datetime, leases_from: datetime, ttls_from: datetime, unplaced_s: float
) -> NextDue:
    """What is due next, from given times on: the one look that an idle shard costs."""
    return await only_row_of(
        NextDue,
        asked,
        SQL.next_due,
        delays_from=delays_from,
        leases_from=leases_from,
        ttls_from=ttls_from,
        unplaced_s=unplaced_s,
    )


async def drop_keys(asked: Asked, limit: int) -> int:
    """Keys whose time ran out go; how many."""
    return len(await asked.fetch(SQL.drop_keys, limit=limit))


async def drop_acked(asked: Asked, age_s: float, limit: int) -> int:
    """Memory of acked items that were made longer ago goes; how many rows."""
    return len(await asked.fetch(SQL.drop_acked, age_s=age_s, limit=limit))


async def drop_operations(asked: Asked, age_s: float, limit: int) -> int:
    """Operations that ended long ago go; how many."""
    return len(await asked.fetch(SQL.drop_operations, age_s=age_s, limit=limit))


async def drop_attempts(asked: Asked, age_s: float, limit: int) -> int:
    """Deliveries that failed long ago go; how many."""
    return len(await asked.fetch(SQL.drop_attempts, age_s=age_s, limit=limit))


async def old_dead(asked: Asked, age_s: float, limit: int) -> list[str]:
    """Items that died long ago."""
    return [row[0] for row in await asked.fetch(SQL.old_dead, age_s=age_s, limit=limit)]


async def far_keys(asked: Asked, after: tuple[int, int, str], limit: int) -> list[FarKey]:
    """A page of keys whose items live elsewhere."""
    values = {"after_lives_at": after[0], "after_namespace_id": after[1], "after_key": after[2], "limit": limit}
    return await rows_of(FarKey, asked, SQL.far_keys, **values)


async def note_far_keys(asked: Asked, keys: Sequence[FarKey], states: Sequence[str]) -> None:
    """Their items are gone, dead, or living again."""
    await asked.fetch(
        SQL.note_far_keys,
        states=states,
        namespace_ids=[key.namespace_id for key in keys],
        keys=[key.key for key in keys],
        ids=[key.id for key in keys],
    )


async def ended_age_s(asked: Asked) -> float:
    """How long ago `ended` was rotated."""
    [row] = await asked.fetch(SQL.ended_age_s)
    return float(row[0])


async def rotate(tx: Transaction, age_s: float, lock_timeout: str) -> None:
    """Swap the two `ended` tables and empty the older; by name, so that every statement stays the same text."""
    await tx.fetch(SQL.wait_briefly, lock_timeout=lock_timeout)
    if await tx.row(SQL.start_rotation, age_s=age_s) is None:
        return
    await tx.fetch(SQL.keep_cancelled, age_s=age_s)
    for statement in (SQL.lock_ended, SQL.empty_old, SQL.set_old_aside, SQL.age_current, SQL.bring_spare):
        await tx.fetch(statement)
