"""The statements about what transactions leave to be done, bound: outbox, add calls, walks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.dag.model import Addition, DagNo, NodeNo, Ref, Send
from services.dag.store.dags import SQL, Walk
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, map_of, only_row_of, rows_of, value_of
from shared.shards.shard_map import Shard


class Waiting(NamedTuple):
    """A DAG with work left, and its tenant."""

    dag_no: DagNo
    namespace: str


class ToDo(NamedTuple):
    """Whether there are rows overdue in the `outbox`, `walks` to go on with, anything to `sweep`, and `timers` and
    `slots` due soon."""

    outbox: bool
    walks: bool
    sweep: bool
    timers: bool
    slots: bool


async def poll_duties(shard: Shard, *, stopped_s: float, tally_rows_min: int, ahead_s: float) -> ToDo:
    """What there is to do, by the duties whose it is."""
    values = {"stopped_s": stopped_s, "tally_rows_min": tally_rows_min, "ahead_s": ahead_s}
    return await only_row_of(ToDo, shard.pool, SQL.poll_duties, **values)


# Outbox


async def claim_overdue(
    shard: Shard, *, rows_max: int, bytes_max: int, retry_s: float, retry_s_max: float
) -> list[Send]:
    """Outbox rows that are due, up to the one whose inputs reach the bound; each is due again after a pause that
    doubles from `retry_s`."""
    rows = await shard.pool.fetch(
        SQL.claim_overdue, rows_max=rows_max, bytes_max=bytes_max, retry_s=retry_s, retry_s_max=retry_s_max
    )
    return [
        Send(no, generation, action, item_id, namespace, inputs, retry=retry)
        for no, generation, action, item_id, namespace, inputs, retry in rows
    ]


async def delete_sent(shard: Shard, sends: Sequence[Send], added: Sequence[int]) -> None:
    """Forget rows that were sent, and add calls (by their first node) whose items the queue was given. A relaxed
    commit: a row that comes back is sent twice, to no effect."""
    await shard.relaxed.fetch(
        SQL.delete_sent,
        node_nos=[s.no for s in sends],
        generations=[s.generation for s in sends],
        actions=[s.action for s in sends],
        added=added,
    )


async def drop_sends(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """Forget what was to be made or revived of these nodes."""
    await tx.fetch(SQL.drop_sends, node_nos=nos)


async def count_outbox(shard: Shard, rows_max: int) -> int:
    """Rows that wait, counted up to `rows_max`."""
    return await value_of(int, shard.pool, SQL.count_outbox, rows_max=rows_max)


# Add calls


async def insert_adding(tx: Transaction, addition: Addition) -> None:
    """An add call has written its nodes."""
    await tx.fetch(SQL.insert_adding, first_no=addition.first_no, last_no=addition.last_no)


async def delete_adding(tx: Transaction, addition: Addition) -> None:
    """An add call is decided."""
    await tx.fetch(SQL.delete_adding, first_no=addition.first_no)


async def adding_of(tx: Transaction, dag_no: DagNo) -> list[Addition]:
    """The DAG's add calls that are not decided."""
    return await rows_of(Addition, tx, SQL.adding_of, dag_no=dag_no)


async def claim_stopped_adds(shard: Shard, *, age_s: float, rows_max: int) -> list[Addition]:
    """Add calls that nobody has driven for `age_s`; for as long from now they are the caller's."""
    return await rows_of(Addition, shard.pool, SQL.claim_stopped_adds, age_s=age_s, rows_max=rows_max)


# Walks


async def insert_spread(tx: Transaction, refs: Iterable[Ref]) -> None:
    """Terminal nodes whose edges are to be flipped in later steps."""
    refs = list(refs)
    await tx.fetch(
        SQL.insert_spread,
        node_nos=[ref.no for ref in refs],
        generations=[ref.generation for ref in refs],
    )


async def spread_of(tx: Transaction, dag_no: DagNo, rows_max: int) -> list[Walk]:
    """The DAG's nodes with edges left to flip."""
    return await rows_of(Walk, tx, SQL.spread_of, dag_no=dag_no, rows_max=rows_max)


async def advance_spread(tx: Transaction, no: NodeNo, after_down: int) -> None:
    """The walk of a node has come so far."""
    await tx.fetch(SQL.advance_spread, node_no=no, after_down=after_down)


async def delete_spread(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """The walks of these nodes are done, or void."""
    await tx.fetch(SQL.delete_spread, node_nos=nos)


async def clear_spread(tx: Transaction, dag_no: DagNo) -> None:
    """All walks of a DAG are void."""
    await tx.fetch(SQL.clear_spread, dag_no=dag_no)


async def insert_scan(tx: Transaction, dag_no: DagNo, kind: str, after_no: int) -> None:
    """A walk over all nodes, after `after_no`."""
    await tx.fetch(SQL.insert_scan, dag_no=dag_no, kind=kind, after_no=after_no)


async def scans_of(tx: Transaction, dag_no: DagNo) -> dict[str, int]:
    """The DAG's walks over all nodes: how far each kind has come."""
    return await map_of(str, int, tx, SQL.scans_of, dag_no=dag_no)


async def advance_scan(tx: Transaction, dag_no: DagNo, kind: str, after_no: int) -> None:
    """A walk over all nodes has come so far."""
    await tx.fetch(SQL.advance_scan, dag_no=dag_no, kind=kind, after_no=after_no)


async def delete_scan(tx: Transaction, dag_no: DagNo, kind: str) -> None:
    """A walk over all nodes is done."""
    await tx.fetch(SQL.delete_scan, dag_no=dag_no, kind=kind)


async def walks(shard: Shard, after_dag_no: int, dags_max: int) -> list[Waiting]:
    """DAGs numbered above `after_dag_no` that have a walk of any kind to go on with, ascending."""
    return await rows_of(Waiting, shard.pool, SQL.walks, after_dag_no=after_dag_no, dags_max=dags_max)


async def overdue_dags(shard: Shard, dags_max: int) -> list[DagNo]:
    """Numbers of running DAGs whose deadline has passed."""
    return await column_of(DagNo, shard.pool, SQL.overdue_dags, dags_max=dags_max)


async def fold_tally(shard: Shard, *, rows_min: int, rows_max: int) -> int:
    """Fold up to `rows_max` deltas once there are `rows_min`; how many there were."""
    rows = await value_of(int, shard.pool, SQL.count_tally)
    if rows < rows_min:
        return 0
    await shard.pool.fetch(SQL.fold_tally, rows_max=rows_max)
    return rows


async def queue_shards_beside(shard: Shard) -> frozenset[ShardNo]:
    """Numbers of the queue's shards in a DAG shard's own database."""
    return frozenset(await column_of(ShardNo, shard.pool, SQL.queue_shards_beside))
