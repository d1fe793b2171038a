"""The statements about edges and externals, bound; they expect the DAG's lock."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from services.dag.model import DagNo, Node, NodeNo, Resolved
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import column_of, map_of, rows_of
from shared.shards.shard_map import Shard


class Known(NamedTuple):
    """An external that is declared, or resolved and not declared; whether it is resolved as failed."""

    failed: bool
    declared: bool


class Fact(NamedTuple):
    """An external's row."""

    node: str
    name: str
    resolved: bool
    failed: bool


class ExternalName(NamedTuple):
    """A node, and the name of an external of it."""

    node_key: str
    name: str


class ResolvedNow(NamedTuple):
    """An external that a statement has just resolved."""

    node_key: str
    name: str
    declared: bool
    failed: bool


class Edge(NamedTuple):
    """An edge, by the numbers of its nodes."""

    up: NodeNo
    down: NodeNo


class EdgeColumns(NamedTuple):
    """Edges: their upstreams, and in the same order their downstreams."""

    ups: array[int]
    downs: array[int]


async def insert_edges(tx: Transaction, edges: Sequence[tuple[int, int, bool]]) -> None:
    """Insert (up, down, satisfied)."""
    await tx.fetch(
        SQL.insert_edges,
        ups=[up for up, _, _ in edges],
        downs=[down for _, down, _ in edges],
        satisfieds=[satisfied for _, _, satisfied in edges],
    )


async def existing_edges(tx: Transaction, edges: Sequence[tuple[NodeNo, NodeNo]]) -> set[tuple[NodeNo, NodeNo]]:
    """Which of these edges exist."""
    ups, downs = [up for up, _ in edges], [down for _, down in edges]
    return set(await rows_of(Edge, tx, SQL.existing_edges, ups=ups, downs=downs))


async def edges_above(tx: Transaction, nos: Sequence[NodeNo], rows_max: int) -> list[Edge]:
    """Edges on the ways that lead to these nodes, the nearest first; at most so many."""
    return await rows_of(Edge, tx, SQL.edges_above, nos=nos, rows_max=rows_max)


async def edges_page(
    shard: Shard, after: tuple[int, int], last_up: int, rows_max: int, *, over: bool = False
) -> list[Edge]:
    """Edges after `after` whose upstream is at most `last_up`, in order."""
    statement = everywhere(SQL.edges_page) if over else SQL.edges_page
    rows = await shard.pool.fetch(
        statement, after_up=after[0], after_down=after[1], last_up=last_up, rows_max=rows_max
    )
    return [Edge(*row) for row in rows]


async def edge_columns(shard: Shard, after: tuple[int, int], last_up: int, rows_max: int) -> EdgeColumns | None:
    """The same as numbers within the DAG, column by column; None where there are none."""
    row = await shard.pool.row(
        SQL.edge_columns, after_up=after[0], after_down=after[1], last_up=last_up, rows_max=rows_max
    )
    return None if row["ups"] is None else EdgeColumns(_numbers(row["ups"]), _numbers(row["downs"]))


def _numbers(sent: bytes) -> array[int]:
    numbers = array("I", sent)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


async def out_degrees(tx: Transaction, ups: Sequence[NodeNo], degree_max: int) -> dict[NodeNo, int]:
    """Edges that leave each node, counted up to `degree_max`."""
    return await map_of(NodeNo, int, tx, SQL.out_degrees, ups=ups, degree_max=degree_max)


async def flip_edges(tx: Transaction, ended: Sequence[tuple[int, str]], edges_max: int) -> tuple[list[Node], int]:
    """Flip and count edges of nodes just ended (number, state); the children, and how many edges."""
    rows = await tx.fetch(
        SQL.flip_edges,
        ups=[no for no, _ in ended],
        states=[state for _, state in ended],
        edges_max=edges_max,
    )
    return [Node(*columns) for *columns, _ in rows], sum(edges for *_, edges in rows)


async def skipped_below(tx: Transaction, skipped: Sequence[int], edges_max: int) -> list[Node]:
    """What is to be skipped below skipped nodes, whatever else it waits for; looks at so many edges."""
    rows = await tx.fetch(SQL.skipped_below, nos=skipped, rows_max=2 * edges_max)
    return [Node(*row) for row in rows]


async def flip_after(tx: Transaction, up: int, state: str, after_down: int, edges_max: int) -> list[Node]:
    """The same for one node, from a downstream on."""
    rows = await tx.fetch(SQL.flip_after, up=up, state=state, after_down=after_down, edges_max=edges_max)
    return [Node(*row) for row in rows]


async def recount_edges(tx: Transaction, nos: Sequence[NodeNo]) -> None:
    """Flags and counts of all edges into these nodes, by how their upstreams stand."""
    await tx.fetch(SQL.recount_edges, nos=nos)


async def open_children(tx: Transaction, nos: Sequence[NodeNo]) -> list[NodeNo]:
    """Nodes below these that are not released or terminal."""
    return await column_of(NodeNo, tx, SQL.open_children, nos=nos)


async def declare_externals(
    tx: Transaction, dag_no: DagNo, wanted: Mapping[tuple[str, str], float | None]
) -> tuple[list[Fact], int]:
    """Declare (node key, name), each with its deadline or None; what stands, and how many rows are new."""
    rows = await tx.fetch(
        SQL.declare_externals,
        dag_no=dag_no,
        node_keys=[key for key, _ in wanted],
        names=[name for _, name in wanted],
        deadlines_s=list(wanted.values()),
    )
    return [Fact(*columns) for *columns, _ in rows], sum(made for *_, made in rows)


async def find_externals(
    tx: Transaction, dag_no: DagNo, wanted: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Known]:
    """Which of (node key, name) are known."""
    rows = await tx.fetch(
        SQL.find_externals,
        dag_no=dag_no,
        node_keys=[key for key, _ in wanted],
        names=[name for _, name in wanted],
    )
    return {(node_key, name): Known(*known) for node_key, name, *known in rows}


async def overdue_externals(shard: Shard, rows_max: int) -> dict[DagNo, list[ExternalName]]:
    """Externals whose deadline has passed, the oldest first, by DAG."""
    found: dict[DagNo, list[ExternalName]] = {}
    for dag_no, *external in await shard.pool.fetch(SQL.overdue_externals, rows_max=rows_max):
        found.setdefault(dag_no, []).append(ExternalName(*external))
    return found


async def expire_externals(
    tx: Transaction, dag_no: DagNo, overdue: Sequence[tuple[str, str]], waiting: Container[str]
) -> list[ExternalName]:
    """Resolve these as failed if they are overdue still; of nodes not in `waiting` only forget the deadlines."""
    return await rows_of(
        ExternalName,
        tx,
        SQL.expire_externals,
        dag_no=dag_no,
        node_keys=[key for key, _ in overdue],
        names=[name for _, name in overdue],
        waits=[key in waiting for key, _ in overdue],
    )


async def resolve_externals(tx: Transaction, dag_no: DagNo, facts: Sequence[Resolved]) -> list[ResolvedNow]:
    """Write facts; which externals were not resolved before."""
    return await rows_of(
        ResolvedNow,
        tx,
        SQL.resolve_externals,
        dag_no=dag_no,
        node_keys=[fact.node for fact in facts],
        names=[fact.name for fact in facts],
        datas=[fact.data for fact in facts],
        faileds=[fact.failed for fact in facts],
    )
