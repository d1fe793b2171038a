"""The log of deliveries that failed, of DAGs' items: for whoever asks later how a node came to its end.

Written in the transaction that gives an item back or buries it, and only then; a delivery that succeeds costs
nothing. The first `logged_attempts_max` of an item are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.queue.store.items import AttemptToLog, LockedItem, Requeue, log_attempts
from services.queue.store.leases import Holding
from shared.postgres.connections import Transaction


async def log(
    tx: Transaction,
    given_back: Sequence[tuple[Requeue, str]],
    items: Mapping[str, LockedItem],
    holdings: Mapping[str, Holding],
    attempts_max: int,
) -> None:
    """Note (row, outcome) of items whose rows this transaction has locked."""
    logged = [
        AttemptToLog(
            row.id,
            item.namespace_id,
            item.attempts + 1,
            holdings[row.id].claimed_at,
            outcome,
            row.error,
            holdings[row.id].worker,
        )
        for row, outcome in given_back
        if (item := items[row.id]).managed and item.attempts < attempts_max
    ]
    if logged:
        await log_attempts(tx, logged)
