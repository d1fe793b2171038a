"""What is kept only for a while: memory of ended items, keys, operations, dead items, logs, workers; counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from services.queue.operations.pace import Pace
from services.queue.settings import QueueSettings
from services.queue.store import items, job_logs, retention, topics, workers
from services.queue.store.items import Removal
from services.queue.store.shard_store import Store
from shared.errors import ShardUnavailable
from shared.log import log
from shared.postgres.connections import Transaction

FOLD_ROWS_MAX = 20_000
# What was cancelled under a lease is read for a few seconds.
CANCELS_S = 60.0
ENDED_SLACK_S = 120.0
# Ids that are younger when they are acked may be remembered by when they were made (see `leave_behind`).
PACKED_AGE_S = 300.0
# While the rotation waits for a lock that somebody holds, every statement on `ended` waits behind it.
ROTATION_LOCK = "50ms"


class Retention:
    """The duties of one shard."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self._store = store
        self._settings = settings
        self._folds = Pace(FOLD_ROWS_MAX)
        self._paces = {
            name: Pace(settings.chunk_items_max)
            for name in ("keys", "acked", "dead", "operations", "attempts", "logs", "workers", "cancels")
        }

    def steps(self) -> Mapping[str, Callable[[], Awaitable[int]]]:
        """The duties by name; each says how much it did, or 0 if that was all."""
        settings, pool = self._settings, self._store.pool
        return {
            "rotation": self.rotate_step,
            "keys": self._dropping("keys", partial(retention.drop_keys, pool)),
            "acked items": self._dropping(
                "acked", partial(retention.drop_acked, pool, settings.id_window_s + PACKED_AGE_S + ENDED_SLACK_S)
            ),
            "dead items": self._drop_dead_step,
            "old operations": self._dropping(
                "operations", partial(retention.drop_operations, pool, settings.operation_retention_s)
            ),
            "old attempts": self._dropping(
                "attempts", partial(retention.drop_attempts, pool, settings.attempt_retention_s)
            ),
            "old logs": self._dropping("logs", partial(job_logs.drop_old, pool, settings.log_retention_s)),
            "gone workers": self._dropping(
                "workers", partial(workers.drop_old, pool, settings.worker_retention_s)
            ),
            "told cancels": self._dropping("cancels", partial(workers.drop_cancelled, pool, CANCELS_S)),
        }

    async def fold_step(self) -> int:
        """Fold appended counts into the totals."""
        return await _whole(self._folds, partial(topics.fold_counts, self._store.pool))

    async def rotate_step(self) -> int:
        """Rotate `ended` once it is old enough; 0: a next step is not needed at once.

        It waits for the tables' locks only for a moment: behind it everything else would wait too. Where somebody
        holds one for longer, as a backup does, it is left to a later step; all that costs is memory of older ends.
        """
        age_s = self._settings.id_window_s + ENDED_SLACK_S
        if await retention.ended_age_s(self._store.pool) >= age_s:
            try:
                await self._store.pool.transaction(lambda tx: retention.rotate(tx, age_s, ROTATION_LOCK))
            except ShardUnavailable as error:
                log.info("the rotation of ended items is put off", shard=self._store.number, detail=error.detail)
        return 0

    def _dropping(self, name: str, drop: Callable[[int], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
        return lambda: _whole(self._paces[name], drop)

    async def _drop_dead_step(self) -> int:
        async def drop(limit: int) -> int:
            age_s = self._settings.dead_retention_s
            dead = await retention.old_dead(self._store.pool, age_s, limit)
            if dead:
                await self._store.pool.transaction(lambda tx: _drop_dead(tx, dead))
            return len(dead)

        return await _whole(self._paces["dead"], drop)


async def _whole(pace: Pace, work: Callable[[int], Awaitable[int]]) -> int:
    """One step of a duty that is done for now once a step was not full."""
    taken = await pace.step(work)
    return taken if pace.was_full else 0


async def _drop_dead(tx: Transaction, ids: list[str]) -> None:
    left = await items.leave_dead(tx, ids)
    await items.remove(tx, [Removal(item_id, "dead", "dead") for item_id in left])
