"""Statements about the gates of topics that have limits."""

from __future__ import annotations

from collections.abc import Sequence
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
    topic_slow: bool
    key_slow: bool


class GateRow(NamedTuple):
    """A gate; `granted` and `leased` are JSON, `at` is now."""

    tokens: float | None
    filled_at: datetime
    slow_until: datetime | None
    granted: str
    leased: str
    at: datetime


class KeyGateRow(NamedTuple):
    """The gate of a key; `held` is JSON, `at` is now."""

    key: str
    tokens: float | None
    filled_at: datetime
    slow_until: datetime | None
    held: str
    at: datetime


class KeptGate(NamedTuple):
    """What the gate of a key has become, with the tokens of `filled_at`; at `idle_at` it is as if made anew."""

    key: str
    tokens: float | None
    filled_at: datetime
    held: str
    idle_at: datetime


class LiftedRow(NamedTuple):
    """A topic whose limits were taken away, and when."""

    namespace: str
    topic: str
    limits_at: datetime


class Throttle(NamedTuple):
    """A throttle of a topic (`key` is empty) or of a key of it."""

    key: str
    slow_until: datetime


class IdleGate(NamedTuple):
    """A gate that may be removed if it holds nothing."""

    namespace: str
    topic: str
    key: str
    held: str


async def limits(asked: Asked) -> list[LimitsRow]:
    """The topics that have limits."""
    return await rows_of(LimitsRow, asked, SQL.topic_limits)


async def lifted(asked: Asked, pairs: Sequence[tuple[str, str]]) -> list[LiftedRow]:
    """Those of some (namespace, topic) whose limits were taken away."""
    namespaces, topics = zip(*pairs, strict=True)
    return await rows_of(LiftedRow, asked, SQL.lifted_limits, namespaces=namespaces, topics=topics)


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


async def fairness_keys(asked: Asked, ids: Sequence[str]) -> dict[str, str | None]:
    """The fairness keys of items that are there."""
    return {row["id"]: row["fairness_key"] for row in await asked.fetch(SQL.fairness_keys_of, ids=ids)}


async def lock_keys(
    tx: Transaction, namespace: str, topic: str, keys: Sequence[str], slot: int
) -> list[KeyGateRow]:
    """The gates of keys, locked; none: the topic's slot is not at home here."""
    return await rows_of(
        KeyGateRow, tx, SQL.lock_key_gates, namespace=namespace, topic=topic, keys=keys, slot=slot
    )


async def keep_keys(tx: Transaction, namespace: str, topic: str, kept: Sequence[KeptGate]) -> None:
    """Write what gates of keys have become."""
    keys, tokens, filled_ats, helds, idle_ats = zip(*kept, strict=True)
    await tx.fetch(
        SQL.keep_key_gates,
        namespace=namespace,
        topic=topic,
        keys=keys,
        tokens=tokens,
        filled_ats=filled_ats,
        helds=helds,
        idle_ats=idle_ats,
    )


async def slow_keys(asked: Asked, namespace: str, topic: str, keys: Sequence[str]) -> dict[str, float]:
    """Which of these keys are throttled, and for how long yet."""
    found = await asked.fetch(SQL.slow_keys, namespace=namespace, topic=topic, keys=keys)
    return {row["key"]: row["slow_s"] for row in found}


async def leased_among(asked: Asked, ids: Sequence[str]) -> set[str]:
    """Which of these items are leased on the shard."""
    return {row["id"] for row in await asked.fetch(SQL.leased_among, ids=ids)}


async def slow(asked: Asked, namespace: str, topic: str, slot: int, slow_s: float, key: str) -> bool:
    """Hand nothing out for so long, of a topic or of a key of it; False: the topic's slot is not at home here."""
    row = await asked.fetch(SQL.slow_gate, namespace=namespace, topic=topic, slot=slot, slow_s=slow_s, key=key)
    return bool(row)


async def throttles(asked: Asked, namespace: str, topic: str, limit: int) -> list[Throttle]:
    """What is throttled of a topic, itself first."""
    return await rows_of(Throttle, asked, SQL.throttles_of, namespace=namespace, topic=topic, limit=limit)


async def lift(asked: Asked, namespace: str, topic: str, slot: int, key: str | None) -> bool:
    """End throttles of a topic and its keys, or of one; False: the topic's slot is not at home here."""
    [row] = await asked.fetch(SQL.lift_throttles, namespace=namespace, topic=topic, slot=slot, key=key)
    return bool(row["is_home"])


async def idle(tx: Transaction, limit: int) -> list[IdleGate]:
    """Gates that may be removed if they hold nothing, locked."""
    return await rows_of(IdleGate, tx, SQL.idle_gates, limit=limit)


async def end_idle(tx: Transaction, gates: Sequence[IdleGate]) -> None:
    """Remove gates that hold nothing."""
    namespaces, topics, keys, helds = zip(*gates, strict=True)
    await tx.fetch(SQL.end_gates, namespaces=namespaces, topics=topics, keys=keys, helds=helds)
