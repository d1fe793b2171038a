"""The statements about ended DAGs, bound: where their rows are, and their moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from services.dag.model import Dag, DagNo, NodeNo
from services.dag.store.dags import SQL, NodeInput
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, map_of, rows_of, value_of, value_or_none
from shared.postgres.sql import Statement
from shared.shards.shard_map import Shard


class MovedRows(NamedTuple):
    """How many rows a statement has moved, and how many there were to move."""

    rows: int
    found: int


class DueDag(NamedTuple):
    """A DAG that retention has something to do with."""

    dag_no: DagNo
    phase: str


class OldDag(NamedTuple):
    """An ended DAG whose time is over, and whether it may be dropped."""

    dag_no: DagNo
    finished_at: datetime
    droppable: bool


class KeptDag(NamedTuple):
    """Where the rows of an ended DAG are: its phase, the end that it was noted for, and whether it is its turn."""

    dag_no: DagNo
    phase: str
    finished_at: datetime
    due: bool


@cache
def everywhere(statement: Statement) -> Statement:
    """A reading statement that finds rows in the hot tables and in the kept ones."""
    names, _, _ = SQL.both_places.text.rpartition("SELECT")
    return Statement(f"{statement.name}_everywhere", statement.parameters, names + statement.text)


async def inputs_sizes(tx: Transaction, nos: Sequence[NodeNo]) -> dict[NodeNo, int]:
    """As `store.inputs_sizes`, of nodes wherever they are."""
    return await map_of(NodeNo, int, tx, everywhere(SQL.inputs_sizes), nos=nos)


async def inputs(tx: Transaction, nos: Sequence[NodeNo]) -> list[NodeInput]:
    """As `store.inputs`, of nodes wherever they are."""
    return await rows_of(NodeInput, tx, everywhere(SQL.inputs), nos=nos)


async def pick_ended(shard: Shard, *, grace_s: float, dags_max: int) -> int:
    """Note the next DAGs that ended more than `grace_s` ago; how many."""
    return await value_of(int, shard.pool, SQL.pick_ended, grace_s=grace_s, dags_max=dags_max)


async def kept_due(shard: Shard, dags_max: int) -> list[DueDag]:
    """DAGs that there is something to do with."""
    return await rows_of(DueDag, shard.pool, SQL.kept_due, dags_max=dags_max)


async def kept_of(tx: Transaction, dag_nos: Sequence[DagNo]) -> dict[DagNo, KeptDag]:
    """What is noted of these DAGs."""
    return {kept.dag_no: kept for kept in await rows_of(KeptDag, tx, SQL.kept_of, dag_nos=dag_nos)}


async def busy_dags(tx: Transaction, dag_nos: Sequence[DagNo]) -> set[DagNo]:
    """Which of these have outbox rows, walks or adds."""
    return set(await column_of(DagNo, tx, SQL.busy_dags, dag_nos=dag_nos))


async def set_phase(tx: Transaction, dag_nos: Sequence[DagNo], phase: str, *, due_in_s: float = 0.0) -> None:
    """The DAGs are in this phase, and are looked at again in `due_in_s`."""
    await tx.fetch(SQL.set_phase, dag_nos=dag_nos, phase=phase, due_in_s=due_in_s)


async def forget_kept(tx: Transaction, dag_nos: Sequence[DagNo]) -> None:
    """Nothing is noted of these any more."""
    await tx.fetch(SQL.forget_kept, dag_nos=dag_nos)


async def keep_rows(tx: Transaction, dag_nos: Sequence[DagNo], rows_max: int, bytes_max: int) -> bool:
    """Move up to about so many rows and bytes out of the hot tables; True when that was all."""
    statements = (SQL.keep_edges, SQL.keep_nodes, SQL.keep_externals, SQL.keep_changes)
    return await _move(tx, statements, rows_max, {"dag_nos": dag_nos, "bytes_max": bytes_max})


async def unarchive_rows(tx: Transaction, dag_no: DagNo, rows_max: int, bytes_max: int) -> bool:
    """Move up to about so many rows and bytes back; True when that was all."""
    statements = (SQL.unarchive_changes, SQL.unarchive_externals, SQL.unarchive_nodes, SQL.unarchive_edges)
    return await _move(tx, statements, rows_max, {"dag_no": dag_no, "bytes_max": bytes_max})


async def _move(tx: Transaction, statements: Sequence[Statement], rows_max: int, given: dict[str, Any]) -> bool:
    left = rows_max
    for statement in statements:
        values = given | {"rows_max": left}
        moved = MovedRows(*await tx.row(statement, **{name: values[name] for name in statement.parameters}))
        left -= moved.rows
        if left <= 0 or moved.rows < moved.found:
            return False
    return True


async def old_kept(
    shard: Shard, after: tuple[datetime, int], *, retention_s: float, exported_only: bool, dags_max: int
) -> list[OldDag]:
    """DAGs whose time is over, after that (end, number)."""
    return await rows_of(
        OldDag,
        shard.pool,
        SQL.old_kept,
        after_at=after[0],
        after_no=after[1],
        retention_s=retention_s,
        exported_only=exported_only,
        dags_max=dags_max,
    )


async def drop_dags(tx: Transaction, nos: Sequence[DagNo]) -> None:
    """Delete DAGs' own rows and take them out of the totals."""
    await tx.fetch(SQL.drop_dags, nos=nos)


async def drop_rows(tx: Transaction, dag_nos: Sequence[DagNo], rows_max: int) -> bool:
    """Delete up to `rows_max` rows of each kind that dropped DAGs had; True when that was all."""
    return await value_of(int, tx, SQL.drop_rows, dag_nos=dag_nos, rows_max=rows_max) < rows_max


# Export


async def ended_dags(
    shard: Shard, since: datetime, after: tuple[datetime, str], *, lag_s: float, scan_max: int
) -> list[Dag]:
    """DAGs of all namespaces in the order of their ends, after that (end, id)."""
    rows = await shard.pool.fetch(
        SQL.ended_dags, since=since, after_at=after[0], after_id=after[1], lag_s=lag_s, scan_max=scan_max
    )
    return [Dag(*row) for row in rows]


async def specs_of(shard: Shard, nos: Sequence[NodeNo], bytes_max: int) -> dict[NodeNo, str]:
    """What the items of the first of these nodes, ascending, are made of, as JSON text, wherever the nodes are."""
    return await map_of(NodeNo, str, shard.pool, everywhere(SQL.specs_of), nos=nos, bytes_max=bytes_max)


async def set_export_mark(shard: Shard, namespace: str, until: datetime) -> datetime:
    """All that ended before is exported; how far that is now."""
    return await value_of(datetime, shard.pool, SQL.set_export_mark, namespace=namespace, until=until)


async def export_mark(shard: Shard, namespace: str) -> datetime | None:
    """Up to which end the namespace is exported."""
    return await value_or_none(datetime, shard.pool, SQL.export_mark, namespace=namespace)
