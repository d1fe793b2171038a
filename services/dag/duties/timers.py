"""Timers end when their time has come: never before, by the shard's clock, and a moment after.

The rows decide. The shard's owner looks for those that are due soon and is woken for each; a timer so short
that this look might miss it wakes the process that has released it, whether that owns the shard or not. What a
process remembers is only when to look: each step asks the shard what is due, and ends that under the locks of
the DAGs' rows. Two processes at once are harmless, and after an outage the first look finds all that became due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.dag import store
from services.dag.model import NodeNo, dag_of
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.timers import NextTimer
from shared.errors import ServiceError
from shared.ids import ShardNo
from shared.loop import part_failed
from shared.metrics import TIMER_LATE_SECONDS
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

# When timers are looked at again whose end could not be written: of a DAG that is busy, and for other reasons.
_BUSY_S: Final = 0.5
_TROUBLED_S: Final = 10.0
# Where time is skipped: how often it is looked whether anything runs, and for how long nothing has to.
SKIP_LOOK_S: Final = 0.1
_QUIET_S: Final = 0.25


class Timers:
    """Ends timers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._short = context.short_timers
        self._idle_since_s: dict[ShardNo, float] = {}

    async def step(self, shard: Shard) -> int:
        """End what is due, so much at a time; how many that were."""
        found = await store.timers.soon(
            shard, ahead_s=self._short.ahead_s, rows_max=self._settings.timers_per_step_max
        )
        due = [timer for timer in found if timer.in_s <= 0]
        ended = await self._end(shard, due) if due else 0
        if not due and self._settings.skip_time and await self._skip(shard):
            return 1
        if not due:
            self._wake_again(shard, found[0].in_s if found else None)
        return ended

    async def _skip(self, shard: Shard) -> bool:
        """For tests: whether a timer is due now because nothing else runs, and did not a moment ago either."""
        if not self._context.ownership.owns(shard.number):
            return False
        now_s = self._context.clock.monotonic_s()
        if not await store.timers.nothing_runs(shard):
            self._idle_since_s.pop(shard.number, None)
            return False
        if now_s - self._idle_since_s.setdefault(shard.number, now_s) < _QUIET_S:
            return False
        return await store.timers.skip_time(shard) > 0

    def _wake_again(self, shard: Shard, next_s: float | None) -> None:
        """The owner waits for whatever is next, another process only for what it has released."""
        self._short.wake_again(shard, next_s)
        if next_s is not None and self._context.ownership.owns(shard.number):
            self._context.wakers[shard.number].timers.kick_in(next_s)

    async def _end(self, shard: Shard, due: Sequence[NextTimer]) -> int:
        try:
            ended = await self._end_together(shard, [timer.no for timer in due])
        except Exception as error:
            # One DAG's trouble must not hold up the others.
            if len({dag_of(timer.no) for timer in due}) == 1:
                dag_no = dag_of(due[0].no)
                part_failed("timers of a DAG cannot be ended", error, shard=shard.number, dag_no=dag_no)
                pause_s = _BUSY_S if isinstance(error, ServiceError) else _TROUBLED_S
                await store.timers.put_off(shard, [timer.no for timer in due], pause_s)
                return 1
            middle = len(due) // 2
            by_dag = sorted(due, key=lambda timer: timer.no)
            return await self._end(shard, by_dag[:middle]) + await self._end(shard, by_dag[middle:])
        for timer in due:
            TIMER_LATE_SECONDS.labels(shard.number).observe(max(0.0, timer.late_s))
        return max(ended, 1)

    async def _end_together(self, shard: Shard, nos: Sequence[NodeNo]) -> int:
        async def work(tx: Transaction) -> tuple[Settlement, int]:
            dags = await store.dags.lock_dag_nos(tx, map(dag_of, nos))
            settlement = Settlement(tx, dags, self._settings, self._context.home(shard))
            taken = await store.timers.take_due(tx, nos)
            for end in await store.dags.mark_refs(tx, dict.fromkeys(taken), "succeeded") if taken else ():
                settlement.ended(end)
            await settlement.run()
            return settlement, len(taken)

        return await self._context.settle(shard, work)
