"""What is kept only for a while: memory of ended items, keys, operations, dead items; and folding counts."""

from __future__ import annotations

from services.queue import store as rows
from services.queue.dispatch import Dispatch
from services.queue.names import SQL
from services.queue.settings import QueueSettings
from services.queue.store import Removal, Store
from shared.pg import Transaction

FOLD_ROWS_MAX = 20_000
ENDED_SLACK_S = 120.0


class Retention:
    """The duties of one shard."""

    def __init__(self, store: Store, dispatch: Dispatch, settings: QueueSettings) -> None:
        self._store = store
        self._dispatch = dispatch
        self._settings = settings

    async def fold_step(self) -> int:
        """Fold appended counts into the totals."""
        row = await self._store.pool.row(SQL.fold_counts, limit=FOLD_ROWS_MAX)
        return int(row["folded"]) // FOLD_ROWS_MAX

    async def step(self) -> int:
        """Rotate `ended`, drop keys, operations and logs whose time is over, remove dead items past retention."""
        await self._rotate()
        limit = self._settings.chunk_items_max
        keys = await self._store.pool.fetch(SQL.drop_keys, limit=limit)
        dead = await self._store.pool.fetch(SQL.old_dead, age_s=self._settings.dead_retention_s, limit=limit)
        if dead:
            await self._store.pool.transaction(lambda tx: self._drop_dead(tx, [row["id"] for row in dead]))
        age_s = self._settings.operation_retention_s
        operations = await self._store.pool.fetch(SQL.drop_operations, age_s=age_s, limit=limit)
        age_s = self._settings.attempt_retention_s
        attempts = await self._store.pool.fetch(SQL.drop_attempts, age_s=age_s, limit=limit)
        return max(map(len, (keys, dead, operations, attempts))) // limit

    async def _rotate(self) -> None:
        age_s = self._settings.id_window_s + ENDED_SLACK_S
        row = await self._store.pool.row(SQL.ended_age_s)
        if row["age_s"] >= age_s:
            await self._store.pool.transaction(lambda tx: rotate(tx, age_s))

    async def _drop_dead(self, tx: Transaction, ids: list[str]) -> None:
        left = await tx.fetch(SQL.leave_dead, ids=ids)
        await rows.remove(tx, [Removal(row["id"], "dead", "dead") for row in left])


async def rotate(tx: Transaction, age_s: float) -> None:
    """Swap the two `ended` tables and empty the older; by name, so that every statement stays the same text."""
    if await tx.row(SQL.start_rotation, age_s=age_s) is None:
        return
    for statement in (SQL.lock_ended, SQL.empty_old, SQL.set_old_aside, SQL.age_current, SQL.bring_spare):
        await tx.fetch(statement)
