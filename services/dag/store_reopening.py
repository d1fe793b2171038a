"""The statements about retries that go in steps, bound; they expect the DAG's lock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from services.dag.model import Dag
from services.dag.store import SQL
from shared.pg import Transaction

Stage = Literal["named", "roots", "count"]


class Plan(NamedTuple):
    """Which nodes run again: those numbered `named` and all in one of the states `below` under them; then what
    stands in one of the states `roots` (with `by_call_too` also what a caller ended) and what was spared because
    of it."""

    named: Sequence[int] = ()
    below: Sequence[str] = ()
    roots: Sequence[str] = ()
    by_call_too: bool = False


class Reopening(NamedTuple):
    """How far a DAG's reopening has come; fields in the order of the columns that `reopening_of` reads."""

    stage: Stage
    below: Sequence[str]
    roots: Sequence[str]
    by_call_too: bool
    cleanups: Sequence[int]
    queue_shard: int
    after_no: int
    started_at: datetime


class Below(NamedTuple):
    """An edge, and how its downstream stands."""

    up: int
    down: int
    state: str
    by_call: bool


async def insert(tx: Transaction, dag: Dag, plan: Plan, cleanups: Sequence[int], queue_shard: int) -> None:
    """A reopening begins."""
    await tx.fetch(
        SQL.insert_reopening,
        dag_no=dag.no,
        below=plan.below,
        roots=plan.roots,
        by_call_too=plan.by_call_too,
        cleanups=cleanups,
        queue_shard=queue_shard,
    )


async def of(tx: Transaction, dag: Dag) -> Reopening:
    """How far the reopening of a DAG has come that is being reopened."""
    row = await tx.row(SQL.reopening_of, dag_no=dag.no)
    return Reopening(*row)


async def advance(tx: Transaction, dag: Dag, stage: Stage, after_no: int) -> None:
    """It has come so far."""
    await tx.fetch(SQL.advance_reopening, dag_no=dag.no, stage=stage, after_no=after_no)


async def drop(tx: Transaction, dag: Dag) -> None:
    """It is done, or void."""
    await tx.fetch(SQL.drop_reopening, dag_no=dag.no)
    await tx.fetch(SQL.clear_reach, dag_no=dag.no)


async def insert_reach(tx: Transaction, nos: Sequence[int]) -> None:
    """What is below these nodes is to be looked at."""
    await tx.fetch(SQL.insert_reach, node_nos=nos)


async def reach_of(tx: Transaction, dag: Dag, rows_max: int) -> dict[int, int]:
    """Nodes below which is to be looked, each with the downstream that this has come to; ascending."""
    rows = await tx.fetch(SQL.reach_of, dag_no=dag.no, rows_max=rows_max)
    return {row["node_no"]: row["after_down"] for row in rows}


async def edges_below(tx: Transaction, reach: dict[int, int], edges_max: int) -> list[Below]:
    """The next edges that leave these nodes, in order."""
    rows = await tx.fetch(SQL.edges_below, ups=list(reach), after_downs=list(reach.values()), edges_max=edges_max)
    return [Below(*row) for row in rows]


async def advance_reach(tx: Transaction, no: int, after_down: int) -> None:
    """The look below a node has come so far."""
    await tx.fetch(SQL.advance_reach, node_no=no, after_down=after_down)


async def delete_reach(tx: Transaction, nos: Sequence[int]) -> None:
    """All below these nodes was looked at."""
    await tx.fetch(SQL.delete_reach, node_nos=nos)
