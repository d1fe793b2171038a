"""Ended DAGs: out of the hot tables after a grace, dropped after their time; all in bounded steps.

Each step notes DAGs in the order of their ends, moves rows of those noted, and drops the oldest. Every
transaction takes the locks of its DAGs and looks again, so two processes at once do no harm, and one that
was killed left nothing half done: the next step goes on from the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from services.dag import store
from services.dag.model import DagNo
from services.dag.run.context import Context
from shared.errors import ServiceError
from shared.ids import ShardNo
from shared.loop import part_failed
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

_BEGIN = (datetime(1, 1, 1, tzinfo=UTC), 0)
_BUSY_S = 60.0


class Retention:
    """Looks after the ended DAGs of the shards."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._old_after: dict[ShardNo, tuple[datetime, int]] = {}

    async def step(self, shard: Shard) -> int:
        """One bounded look at a shard; how much was done."""
        picked = await store.archive.pick_ended(
            shard, grace_s=self._settings.ended_dag_grace_s, dags_max=self._settings.keep_dags_max
        )
        due = await store.archive.kept_due(shard, self._settings.keep_dags_max)
        dropping = [no for no, phase in due if phase == "dropping"]
        moving = [no for no, phase in due if phase != "dropping"]
        if moving:
            await self._move(shard, moving)
        if dropping:
            await shard.pool.transaction(lambda tx: self._drop_rows(tx, dropping))
        return picked + len(due) + await self._drop_old(shard)

    async def _move(self, shard: Shard, nos: Sequence[DagNo]) -> None:
        try:
            await shard.pool.transaction(lambda tx: self._move_rows(tx, nos))
        except ServiceError as error:
            if len(nos) == 1:
                # One DAG's trouble must not hold up the others.
                part_failed("an ended DAG cannot be moved", error, shard=shard.number, dag_no=nos[0])
                await shard.pool.transaction(
                    lambda tx: store.archive.set_phase(tx, nos, "moving", due_in_s=_BUSY_S)
                )
                return
            for no in nos:
                await self._move(shard, [no])

    async def _move_rows(self, tx: Transaction, nos: Sequence[DagNo]) -> None:
        dags = {dag.no: dag for dag in await store.dags.lock_dag_nos(tx, nos)}
        noted = await store.archive.kept_of(tx, nos)
        gone, now = [], []
        for no, kept in noted.items():
            dag = dags.get(no)
            if dag is None or dag.finished_at != kept.finished_at:
                gone.append(no)
            elif kept.phase != "kept" and kept.due:
                # Asked again under the lock: a call may have brought it back since it was found due.
                now.append(no)
        # It runs again, or ended anew and is noted for that: its rows were all brought back before.
        await store.archive.forget_kept(tx, [no for no in gone if noted[no].phase == "due"])
        busy = await store.archive.busy_dags(tx, now) if now else set()
        for no in sorted(busy):
            # In the phase that it has: what is partly moved is not `due`, which says that all its rows are here.
            await store.archive.set_phase(tx, [no], noted[no].phase, due_in_s=_BUSY_S)
        now = [no for no in now if no not in busy]
        if now:
            done = await store.archive.keep_rows(
                tx, now, self._settings.keep_rows_max, self._settings.keep_bytes_max
            )
            await store.archive.set_phase(tx, now, "kept" if done else "moving")

    async def _drop_old(self, shard: Shard) -> int:
        after = self._old_after.get(shard.number, _BEGIN)
        page = await store.archive.old_kept(
            shard,
            after,
            retention_s=self._settings.ended_dag_retention_s,
            exported_only=self._settings.export_before_drop,
            dags_max=self._settings.keep_dags_max,
        )
        full = len(page) == self._settings.keep_dags_max
        self._old_after[shard.number] = (page[-1].finished_at, page[-1].dag_no) if full else _BEGIN
        nos = [old.dag_no for old in page if old.droppable]
        if nos:
            await shard.pool.transaction(lambda tx: self._drop(tx, nos))
        return len(nos) or int(full)

    async def _drop(self, tx: Transaction, nos: Sequence[DagNo]) -> None:
        dags = await store.dags.lock_dag_nos(tx, nos)
        noted = await store.archive.kept_of(tx, nos)
        still = [dag.no for dag in dags if dag.no in noted and noted[dag.no].phase == "kept"]
        if still:
            await store.archive.drop_dags(tx, still)
            await self._drop_rows(tx, still)

    async def _drop_rows(self, tx: Transaction, nos: Sequence[DagNo]) -> None:
        if await store.archive.drop_rows(tx, nos, self._settings.keep_rows_max):
            await store.archive.forget_kept(tx, nos)
        else:
            await store.archive.set_phase(tx, nos, "dropping")
