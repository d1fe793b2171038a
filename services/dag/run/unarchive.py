"""Ended DAGs whose rows were moved out of the hot tables: who wants to change one brings it back first.

Readers need not know: of a DAG that has ended they read both places. A call that needs a kept DAG's nodes
under its lock raises `Archived` there, nothing done; whoever catches it calls `bring_back` and begins again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.dag import store
from services.dag.errors import DagThawing
from services.dag.model import Dag
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")

_ATTEMPTS_MAX = 8
_ABANDONED_S = 60.0
_QUIET_S = 60.0


class Archived(Exception):
    """The DAG's nodes are not in the hot tables, or not all of them."""

    def __init__(self, dag: Dag) -> None:
        super().__init__(dag.id)
        self.dag = dag


async def check(tx: Transaction, dag: Dag) -> None:
    """See that the nodes of a DAG, whose lock is held, are where they can be changed.

    Raises:
        Archived
    """
    if dag.over:
        noted = await store.archive.kept_of(tx, [dag.no])
        if dag.no in noted and noted[dag.no].phase != "due":
            raise Archived(dag)


async def unarchived(
    context: Context, shard: Shard, work: Callable[[Transaction], Awaitable[tuple[Settlement | None, T]]]
) -> T:
    """Run a transaction that ends with a settlement, if need be after the DAG that it is about was brought back.

    Raises:
        DagThawing
    """
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await context.settle(shard, work)
        except Archived as archived:
            await bring_back(context, shard, archived.dag)
    raise unarchiving_error()


async def bring_back(context: Context, shard: Shard, dag: Dag) -> None:
    """Bring a kept DAG's rows back, step by step; anybody may go on with what another began.

    Raises:
        DagThawing: it takes longer than a call should; a later one goes on.
    """
    settings = context.settings
    until_s = context.clock.monotonic_s() + settings.drive_wait_s

    async def step(tx: Transaction) -> bool:
        dags = await store.dags.lock_dag_nos(tx, [dag.no])
        noted = await store.archive.kept_of(tx, [dag.no])
        if not dags or dag.no not in noted or noted[dag.no].phase == "due":
            return True
        done = await store.archive.unarchive_rows(tx, dag.no, settings.keep_rows_max, settings.keep_bytes_max)
        if done:
            # It is moved out again in time, unless it is made to run again.
            await store.archive.set_phase(tx, [dag.no], "due", due_in_s=max(settings.ended_dag_grace_s, _QUIET_S))
        else:
            await store.archive.set_phase(tx, [dag.no], "thawing", due_in_s=_ABANDONED_S)
        return done

    while not await shard.pool.transaction(step):
        if context.clock.monotonic_s() > until_s:
            raise unarchiving_error()


def unarchiving_error() -> DagThawing:
    """What a call answers when a DAG's rows could not be brought back, or were taken away again, in its time."""
    return DagThawing("the DAG is being brought back from the archive; try again", retry_after_s=1.0)
