"""Statements about what jobs log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.queue.model import NamespaceId
from services.queue.store.names import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, only_row_of, row_of, rows_of


class LogUse(NamedTuple):
    """What a namespace's logs take on a shard, and the number of the last call that wrote some."""

    bytes: int
    last_seq: int


class LogHolder(NamedTuple):
    """Of an element of a call, by its place from 1: the item is, or was to its end, held under its token, by whom.

    Of the item's log: whose call was the last one, with which number, and what it takes.
    """

    place: int
    worker: str | None
    last_token: str | None
    last_number: int | None
    item_bytes: int


class LogRow(NamedTuple):
    """Lines to be written, as JSON text."""

    item_id: str
    token: str
    number: int
    attempt: int
    worker: str | None
    bytes: int
    item_bytes: int
    lines: str


class LoggedLines(NamedTuple):
    """Lines of one call."""

    seq: int
    received_at: datetime
    attempt: int
    worker: str | None
    lines: str


async def lock_use(tx: Transaction, namespace_id: NamespaceId) -> LogUse:
    """What the namespace's logs take; nobody else writes any before the transaction ends."""
    found = await row_of(LogUse, tx, SQL.lock_log_use, namespace_id=namespace_id)
    if found is None:
        await tx.fetch(SQL.begin_log_use, namespace_id=namespace_id)
        found = await only_row_of(LogUse, tx, SQL.lock_log_use, namespace_id=namespace_id)
    return found


async def holders(
    tx: Transaction, namespace_id: NamespaceId, ids: Sequence[str], tokens: Sequence[str]
) -> list[LogHolder]:
    """Those of (item, token) that are held so."""
    return await rows_of(LogHolder, tx, SQL.log_holders, namespace_id=namespace_id, ids=ids, tokens=tokens)


async def write(tx: Transaction, namespace_id: NamespaceId, rows: Sequence[LogRow]) -> None:
    """Add rows, in their order, and what they take to the namespace's use."""
    ids, tokens, numbers, attempts, workers, sizes, item_sizes, lines = zip(*rows, strict=True)
    await tx.fetch(
        SQL.write_logs,
        namespace_id=namespace_id,
        ids=ids,
        tokens=tokens,
        numbers=numbers,
        attempts=attempts,
        workers=workers,
        bytes=sizes,
        item_bytes=item_sizes,
        lines=lines,
    )


async def log_of(asked: Asked, item_id: str, namespace: str, from_seq: int, limit: int) -> list[LoggedLines]:
    """What an item logged, living or not: so many calls, from one on."""
    return await rows_of(
        LoggedLines, asked, SQL.job_log, item_id=item_id, namespace=namespace, from_seq=from_seq, limit=limit
    )


async def drop_old(asked: Asked, age_s: float, limit: int) -> int:
    """What was logged long ago goes; how many rows."""
    return len(await asked.fetch(SQL.drop_logs, age_s=age_s, limit=limit))
