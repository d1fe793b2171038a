"""The statements about retries that go in steps, bound; they expect the DAG's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from services.dag.model import Dag, NodeNo
from services.dag.store.dags import SQL
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.postgres.rows import map_of, rows_of

Stage = Literal["named", "roots", "count"]


class RetryPlan(NamedTuple):
    """Which nodes run again: those numbered `named` and all in one of the states `below` under them; then what
    stands in one of the states `roots` (with `by_call_too` also what a caller ended) and what was spared because
    of it. With `cleanup_alone` none of these is an ordinary node."""

    named: Sequence[NodeNo] = ()
    below: Sequence[str] = ()
    roots: Sequence[str] = ()
    by_call_too: bool = False
    cleanup_alone: bool = False


class Reopening(NamedTuple):
    """How far a DAG's reopening has come; fields in the order of the columns that `reopening_of` reads."""

    stage: Stage
    below: Sequence[str]
    roots: Sequence[str]
    by_call_too: bool
    cleanups: Sequence[NodeNo]
    queue_shard: ShardNo
    after_no: int
    started_at: datetime


class Reach(NamedTuple):
    """What a retry concerns: nodes that run again, and the edges that are to be counted anew because of it."""

    again: set[NodeNo]
    edges: int


class Reached(NamedTuple):
    """A node that a retry meets: whether it runs `again`, and how many edges were looked at in all."""

    no: NodeNo
    again: bool
    upstreams: int
    looked_at: int


class Below(NamedTuple):
    """Nodes found to run again, and those below which is still to be looked, each with how far that has come."""

    found: list[NodeNo]
    left: dict[NodeNo, int]


async def insert(
    tx: Transaction, dag: Dag, plan: RetryPlan, cleanups: Sequence[NodeNo], queue_shard: ShardNo
) -> None:
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


async def keep_cleanups(tx: Transaction, dag: Dag, nos: Sequence[NodeNo]) -> None:
    """Of what cleans up these are left to be reopened."""
    await tx.fetch(SQL.keep_cleanups, dag_no=dag.no, cleanups=nos)


async def keep_cleanup_alone(tx: Transaction, dag: Dag) -> bool:
    """Of a reopening nothing is left but what cleans up; False, and it is void, where there is nothing of that."""
    if not (await of(tx, dag)).cleanups:
        await drop(tx, dag)
        return False
    await tx.fetch(SQL.clear_reach, dag_no=dag.no)
    return True


async def drop(tx: Transaction, dag: Dag) -> None:
    """It is done, or void."""
    await tx.fetch(SQL.drop_reopening, dag_no=dag.no)
    await tx.fetch(SQL.clear_reach, dag_no=dag.no)


async def reach(tx: Transaction, nos: Sequence[NodeNo], states: Sequence[str], edges_max: int) -> Reach | None:
    """These nodes and everything in one of `states` below them; None where that is more than `edges_max` edges to
    look at, or to count anew."""
    rows_max = len(nos) + 2 * edges_max
    rows = await rows_of(Reached, tx, SQL.retry_reach, nos=nos, states=states, rows_max=rows_max)
    edges = sum(row.upstreams for row in rows)
    if edges > edges_max or (rows and rows[0].looked_at == rows_max):
        return None
    return Reach({row.no for row in rows if row.again}, edges)


async def insert_reach(tx: Transaction, reach: Mapping[NodeNo, int]) -> None:
    """What is below these nodes, after a downstream, is to be looked at."""
    await tx.fetch(SQL.insert_reach, node_nos=list(reach), after_downs=list(reach.values()))


async def reach_of(tx: Transaction, dag: Dag, rows_max: int) -> dict[NodeNo, int]:
    """Nodes below which is to be looked, each with the downstream that this has come to; ascending."""
    return await map_of(NodeNo, int, tx, SQL.reach_of, dag_no=dag.no, rows_max=rows_max)


async def reach_below(
    tx: Transaction, reach: Mapping[NodeNo, int], states: Sequence[str], *, nodes_max: int, edges_max: int
) -> Below:
    """The next nodes in one of `states` below these, as deep as the bounds let it, and one edge at least."""
    rows = await tx.fetch(
        SQL.reach_below,
        ups=list(reach),
        after_downs=list(reach.values()),
        states=states,
        rows_max=2 * edges_max + 1,
    )
    found: list[NodeNo] = []
    # The edge up to which all was looked at, and the one before it.
    at: tuple[NodeNo, int] | None = None
    before: tuple[NodeNo, int] | None = None
    is_cut = len(rows) == 2 * edges_max + 1
    for no, up, down in rows:
        if no is None:
            before, at = at, (up, down)
        elif len(found) < nodes_max:
            found.append(no)
            before = at
        else:
            is_cut = True
            break
    if not is_cut:
        return Below(found, {})
    # Whether the last edge led to a node may not have been told.
    assert at is not None, "an edge was looked at"
    order = [*reach, *found]
    place = order.index(at[0])
    came_to = before[1] if before is not None and before[0] == at[0] else reach.get(at[0], -1)
    return Below(found, {at[0]: came_to} | {no: reach.get(no, -1) for no in order[place + 1 :]})


async def delete_reach(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """All below these nodes was looked at."""
    await tx.fetch(SQL.delete_reach, node_nos=nos)
