"""The log of deliveries that failed, of DAGs' items: for whoever asks later how a node came to its end.

Written in the transaction that gives an item back or buries it, and only then; a delivery that succeeds costs
nothing. The first `logged_attempts_max` of an item are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.queue.store.names import SQL
from services.queue.store.shard_store import Holding, Requeue
from shared.postgres.connections import Pool, Transaction


async def log(
    tx: Transaction,
    given_back: Sequence[tuple[Requeue, str]],
    items: Mapping[str, Any],
    holdings: Mapping[str, Holding],
    attempts_max: int,
) -> None:
    """Note (row, outcome) of items whose rows this transaction has locked."""
    logged = [
        (item, row, outcome)
        for row, outcome in given_back
        if (item := items[row.id])["managed"] and item["attempts"] < attempts_max
    ]
    if logged:
        await tx.fetch(
            SQL.log_attempts,
            item_ids=[row.id for _, row, _ in logged],
            namespace_ids=[item["namespace_id"] for item, _, _ in logged],
            attempts=[item["attempts"] + 1 for item, _, _ in logged],
            started_ats=[holdings[row.id].claimed_at for _, row, _ in logged],
            workers=[holdings[row.id].worker for _, row, _ in logged],
            outcomes=[outcome for _, _, outcome in logged],
            errors=[row.error for _, row, _ in logged],
        )


async def of_item(pool: Pool, item_id: str, namespace: str, rows_max: int) -> list[dict[str, Any]]:
    """The logged deliveries of an item, living or not, in the order of their ends."""
    rows = await pool.fetch(SQL.attempts_of, item_id=item_id, namespace=namespace, rows_max=rows_max)
    return [dict(row) for row in rows]
