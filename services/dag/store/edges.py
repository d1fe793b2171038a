"""The statements about edges and externals, bound; they expect the DAG's lock."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from services.dag.model import DagNo, Node, Resolved
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
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


async def existing_edges(tx: Transaction, edges: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which of these edges exist."""
    rows = await tx.fetch(SQL.existing_edges, ups=[up for up, _ in edges], downs=[down for _, down in edges])
    return {(row["up"], row["down"]) for row in rows}


async def edges_page(
    shard: Shard, after: tuple[int, int], last_up: int, rows_max: int, *, over: bool = False
) -> list[tuple[int, int]]:
    """Edges after `after` whose upstream is at most `last_up`, in order."""
    rows = await shard.pool.fetch(
        everywhere(SQL.edges_page) if over else SQL.edges_page,
        after_up=after[0],
        after_down=after[1],
        last_up=last_up,
        rows_max=rows_max,
    )
    return [(row["up"], row["down"]) for row in rows]


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


async def out_degrees(tx: Transaction, ups: Sequence[int], degree_max: int) -> dict[int, int]:
    """Edges that leave each node, counted up to `degree_max`."""
    rows = await tx.fetch(SQL.out_degrees, ups=ups, degree_max=degree_max)
    return {row["up"]: row["degree"] for row in rows}


async def flip_edges(tx: Transaction, ended: Sequence[tuple[int, str]], edges_max: int) -> tuple[list[Node], int]:
    """Flip and count edges of nodes just ended (number, state); the children, and how many edges."""
    rows = await tx.fetch(
        SQL.flip_edges,
        ups=[no for no, _ in ended],
        states=[state for _, state in ended],
        edges_max=edges_max,
    )
    return [Node(*tuple(row)[:-1]) for row in rows], sum(row["edges"] for row in rows)


async def skipped_below(tx: Transaction, skipped: Sequence[int], edges_max: int) -> list[Node]:
    """What is to be skipped below skipped nodes, whatever else it waits for; looks at so many edges."""
    rows = await tx.fetch(SQL.skipped_below, nos=skipped, rows_max=2 * edges_max)
    return [Node(*row) for row in rows]


async def flip_after(tx: Transaction, up: int, state: str, after_down: int, edges_max: int) -> list[Node]:
    """The same for one node, from a downstream on."""
    rows = await tx.fetch(SQL.flip_after, up=up, state=state, after_down=after_down, edges_max=edges_max)
    return [Node(*row) for row in rows]


async def recount_edges(tx: Transaction, nos: Sequence[int]) -> None:
    """Flags and counts of all edges into these nodes, by how their upstreams stand."""
    await tx.fetch(SQL.recount_edges, nos=nos)


async def open_children(tx: Transaction, nos: Sequence[int]) -> list[int]:
    """Nodes below these that are not released or terminal."""
    return [row["no"] for row in await tx.fetch(SQL.open_children, nos=nos)]


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
    facts = [Fact(row["node_key"], row["name"], row["resolved"], row["failed"]) for row in rows]
    return facts, sum(row["made"] for row in rows)


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
    return {(row["node_key"], row["name"]): Known(row["failed"], row["declared"]) for row in rows}


async def overdue_externals(shard: Shard, rows_max: int) -> dict[DagNo, list[tuple[str, str]]]:
    """Externals whose deadline has passed, the oldest first: (node key, name) by DAG."""
    found: dict[DagNo, list[tuple[str, str]]] = {}
    for row in await shard.pool.fetch(SQL.overdue_externals, rows_max=rows_max):
        found.setdefault(row["dag_no"], []).append((row["node_key"], row["name"]))
    return found


async def expire_externals(
    tx: Transaction, dag_no: DagNo, overdue: Sequence[tuple[str, str]], waiting: Container[str]
) -> list[tuple[str, str]]:
    """Resolve these as failed if they are overdue still; of nodes not in `waiting` only forget the deadlines."""
    rows = await tx.fetch(
        SQL.expire_externals,
        dag_no=dag_no,
        node_keys=[key for key, _ in overdue],
        names=[name for _, name in overdue],
        waits=[key in waiting for key, _ in overdue],
    )
    return [(row["node_key"], row["name"]) for row in rows]


async def resolve_externals(tx: Transaction, dag_no: DagNo, facts: Sequence[Resolved]) -> list[Any]:
    """Write facts; rows (node_key, name, declared, failed) of those that were not resolved before."""
    return await tx.fetch(
        SQL.resolve_externals,
        dag_no=dag_no,
        node_keys=[fact.node for fact in facts],
        names=[fact.name for fact in facts],
        datas=[fact.data for fact in facts],
        faileds=[fact.failed for fact in facts],
    )
