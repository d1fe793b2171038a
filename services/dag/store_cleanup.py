"""The statements about cleanup and compensation, bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag.model import Dag
from services.dag.store import SQL
from services.dag.store_kept import everywhere
from shared.pg import Transaction
from shared.shards import Shard


class Unplanned(NamedTuple):
    """A compensation without a turn, and how the node that it compensates ended."""

    no: int
    state: str
    of_state: str
    released_at: datetime | None
    finished_at: datetime | None


class CleanupNode(NamedTuple):
    """A cleanup node, or with `of_no` a compensation; `ran` when it was begun."""

    no: int
    of_no: int | None
    ran: bool
    by_call: bool


async def insert(tx: Transaction, dag: Dag, nodes: Mapping[int, int | None]) -> None:
    """New nodes, each with the number of the one that it compensates, or None."""
    await tx.fetch(SQL.insert_cleanups, dag_no=dag.no, node_nos=list(nodes), of_nos=list(nodes.values()))


async def set_cleanup(tx: Transaction, dag: Dag) -> None:
    """Write how far the DAG's cleanup is."""
    await tx.row(
        SQL.set_cleanup,
        no=dag.no,
        cleanups=dag.cleanups,
        cleanup_left=dag.cleanup_left,
        cleanup_phase=dag.cleanup_phase,
        verdict=dag.verdict,
    )


async def unplanned(tx: Transaction, dag: Dag) -> list[Unplanned]:
    """Compensations without a turn."""
    return [Unplanned(*row) for row in await tx.fetch(SQL.unplanned, dag_no=dag.no)]


async def set_waves(tx: Transaction, dag: Dag, waves: Mapping[int, int | None]) -> None:
    """Give compensations their turns; None: it has none, or had it; 0: to be planned."""
    await tx.fetch(SQL.set_waves, dag_no=dag.no, node_nos=list(waves), waves=list(waves.values()))


async def take_wave(tx: Transaction, dag: Dag) -> list[int]:
    """The compensations whose turn it is; each is taken once."""
    return [row["node_no"] for row in await tx.fetch(SQL.take_wave, dag_no=dag.no)]


async def page(tx: Transaction, dag: Dag, after_no: int, rows_max: int) -> list[int]:
    """Cleanup nodes after `after_no`."""
    rows = await tx.fetch(SQL.cleanup_page, dag_no=dag.no, after_no=after_no, rows_max=rows_max)
    return [row["node_no"] for row in rows]


async def all_of(tx: Transaction, dag: Dag) -> list[CleanupNode]:
    """Every cleanup node and compensation of a DAG."""
    return [CleanupNode(*row) for row in await tx.fetch(SQL.cleanups_of, dag_no=dag.no)]


async def compensated_keys(shard: Shard, nos: Sequence[int]) -> dict[int, str]:
    """The key of what each of these compensates."""
    rows = await shard.pool.fetch(everywhere(SQL.compensated_keys), nos=nos)
    return {row["node_no"]: row["key"] for row in rows}
