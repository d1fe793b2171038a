"""What is kept only for a while: memory of ended items, keys, operations, dead items; and folding counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from services.queue.operations.pace import Pace
from services.queue.settings import QueueSettings
from services.queue.store import shard_store as rows
from services.queue.store.names import SQL
from services.queue.store.shard_store import Removal, Store
from shared.errors import ShardUnavailable
from shared.log import log
from shared.postgres.connections import Transaction
from shared.postgres.sql import Statement

FOLD_ROWS_MAX = 20_000
ENDED_SLACK_S = 120.0
# While the rotation waits for a lock that somebody holds, every statement on `ended` waits behind it.
ROTATION_LOCK = "50ms"


class Retention:
    """The duties of one shard."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self._store = store
        self._settings = settings
        self._folds = Pace(FOLD_ROWS_MAX)
        self._paces = {name: Pace(settings.chunk_items_max) for name in ("keys", "dead", "operations", "attempts")}

    def steps(self) -> Mapping[str, Callable[[], Awaitable[int]]]:
        """The duties by name; each says how much it did, or 0 if that was all."""
        settings = self._settings
        return {
            "rotation": self.rotate_step,
            "keys": self._dropping("keys", SQL.drop_keys),
            "dead items": self._drop_dead_step,
            "old operations": self._dropping(
                "operations", SQL.drop_operations, age_s=settings.operation_retention_s
            ),
            "old attempts": self._dropping("attempts", SQL.drop_attempts, age_s=settings.attempt_retention_s),
        }

    async def fold_step(self) -> int:
        """Fold appended counts into the totals."""

        async def fold(limit: int) -> int:
            row = await self._store.pool.row(SQL.fold_counts, limit=limit)
            return int(row["folded"])

        return await _whole(self._folds, fold)

    async def rotate_step(self) -> int:
        """Rotate `ended` once it is old enough; 0: a next step is not needed at once.

        It waits for the tables' locks only for a moment: behind it everything else would wait too. Where somebody
        holds one for longer, as a backup does, it is left to a later step; all that costs is memory of older ends.
        """
        age_s = self._settings.id_window_s + ENDED_SLACK_S
        row = await self._store.pool.row(SQL.ended_age_s)
        if row["age_s"] >= age_s:
            try:
                await self._store.pool.transaction(lambda tx: rotate(tx, age_s))
            except ShardUnavailable as error:
                log.info("the rotation of ended items is put off", shard=self._store.number, detail=error.detail)
        return 0

    def _dropping(self, name: str, statement: Statement, **values: float) -> Callable[[], Awaitable[int]]:
        async def drop(limit: int) -> int:
            return len(await self._store.pool.fetch(statement, limit=limit, **values))

        return lambda: _whole(self._paces[name], drop)

    async def _drop_dead_step(self) -> int:
        async def drop(limit: int) -> int:
            age_s = self._settings.dead_retention_s
            dead = await self._store.pool.fetch(SQL.old_dead, age_s=age_s, limit=limit)
            if dead:
                await self._store.pool.transaction(lambda tx: _drop_dead(tx, [row["id"] for row in dead]))
            return len(dead)

        return await _whole(self._paces["dead"], drop)


async def _whole(pace: Pace, work: Callable[[int], Awaitable[int]]) -> int:
    """One step of a duty that is done for now once a step was not full."""
    taken = await pace.step(work)
    return taken if pace.was_full else 0


async def _drop_dead(tx: Transaction, ids: list[str]) -> None:
    left = await tx.fetch(SQL.leave_dead, ids=ids)
    await rows.remove(tx, [Removal(row["id"], "dead", "dead") for row in left])


async def rotate(tx: Transaction, age_s: float) -> None:
    """Swap the two `ended` tables and empty the older; by name, so that every statement stays the same text."""
    await tx.fetch(SQL.wait_briefly, lock_timeout=ROTATION_LOCK)
    if await tx.row(SQL.start_rotation, age_s=age_s) is None:
        return
    await tx.fetch(SQL.keep_cancelled, age_s=age_s)
    for statement in (SQL.lock_ended, SQL.empty_old, SQL.set_old_aside, SQL.age_current, SQL.bring_spare):
        await tx.fetch(statement)
