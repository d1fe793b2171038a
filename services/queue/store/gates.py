"""Statements about the gates of topics that have limits."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from services.queue.store.names import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, rows_of


class LimitsRow(NamedTuple):
    """What is set for a topic, as JSON."""

    namespace: str
    topic: str
    limits: str
    limits_at: datetime


class GateRow(NamedTuple):
    """A gate; `granted` and `leased` are JSON, `at` is now."""

    tokens: float | None
    filled_at: datetime
    slow_until: datetime | None
    granted: str
    leased: str
    at: datetime


async def limits(asked: Asked) -> list[LimitsRow]:
    """The topics that have limits."""
    return await rows_of(LimitsRow, asked, SQL.topic_limits)


async def lock(tx: Transaction, namespace: str, topic: str, slot: int) -> GateRow | None:
    """The gate of a topic, locked; None: its slot is not at home here."""
    found = await rows_of(GateRow, tx, SQL.lock_gate, namespace=namespace, topic=topic, slot=slot)
    return found[0] if found else None


async def leased(asked: Asked, namespace: str, topic: str) -> int:
    """How many items of a topic are leased on the shard."""
    [row] = await asked.fetch(SQL.leased_of, namespace=namespace, topic=topic)
    return int(row["leased"])


async def keep(
    tx: Transaction,
    namespace: str,
    topic: str,
    tokens: float | None,
    filled_at: datetime,
    granted: str,
    leased_text: str,
) -> None:
    """Write what a gate has become."""
    await tx.fetch(
        SQL.keep_gate,
        namespace=namespace,
        topic=topic,
        tokens=tokens,
        filled_at=filled_at,
        granted=granted,
        leased=leased_text,
    )


async def slow(asked: Asked, namespace: str, topic: str, slot: int, slow_s: float) -> bool:
    """Hand nothing out for so long; False: the topic's slot is not at home here."""
    return bool(await asked.fetch(SQL.slow_gate, namespace=namespace, topic=topic, slot=slot, slow_s=slow_s))
