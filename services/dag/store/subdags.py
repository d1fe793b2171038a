"""The statements about DAGs in the place of nodes, bound."""

from __future__ import annotations

from typing import NamedTuple

from services.dag.model import Dag, DagNo, NodeNo, Parent, Send
from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import value_of
from shared.shards.shard_map import Shard


class SubNode(NamedTuple):
    """A node in whose place a DAG runs, and its DAG; `spec` is JSON text."""

    key: str
    generation: int
    state: str
    dag_id: str
    namespace: str
    depth: int
    spec: str
    started_lift: int
    path_lift: int


class ParentNode(NamedTuple):
    """A node as a DAG that runs in its place finds it; `item_id` is the id of the one that does so now."""

    no: NodeNo
    key: str
    item_id: str
    state: str
    generation: int
    by_call: bool


async def sub_node(shard: Shard, no: NodeNo) -> SubNode | None:
    """A node by number."""
    row = await shard.pool.row(SQL.sub_node, no=no)
    return SubNode(*row) if row else None


async def node_of_child(tx: Transaction, dag: Dag, key: str) -> ParentNode | None:
    """The node of a locked DAG that has, or had, a DAG in its place."""
    row = await tx.row(SQL.node_of_child, dag_no=dag.no, key=key)
    return ParentNode(*row) if row else None


async def set_generation(tx: Transaction, no: NodeNo, generation: int) -> None:
    """Let a node be in this generation, and otherwise as it is."""
    await tx.fetch(SQL.set_generation, no=no, generation=generation)


async def note_retry(tx: Transaction, send: Send) -> None:
    """Write into a row that was just written how the DAG that is there is to be retried."""
    await tx.fetch(SQL.note_retry, node_no=send.no, generation=send.generation, retry=send.retry)


async def adopt(tx: Transaction, dag: Dag, parent: Parent) -> None:
    """Let a locked DAG run for this generation of a node."""
    dag.endings = await value_of(
        int,
        tx,
        SQL.adopt,
        no=dag.no,
        parent_dag=parent.dag,
        parent_node=parent.node,
        parent_generation=parent.generation,
        depth=parent.depth,
    )
    dag.parent_dag, dag.parent_node = parent.dag, parent.node
    dag.parent_generation, dag.depth = parent.generation, parent.depth


async def dag_by_no(shard: Shard, no: DagNo) -> Dag | None:
    """A DAG as it stands."""
    row = await shard.pool.row(SQL.dag_by_no, no=no)
    return Dag(*row) if row else None


async def outputs_page(
    shard: Shard, *, after_no: int, last_no: int, rows_max: int, bytes_max: int, over: bool = False
) -> list[tuple[int, str, str, int]]:
    """(number, key, output as JSON text, bytes of these up to this one) of nodes without downstreams, after
    `after_no` up to `last_no`; it ends with the one that reaches the bound."""
    statement = everywhere(SQL.outputs_page) if over else SQL.outputs_page
    rows = await shard.pool.fetch(
        statement, after_no=after_no, last_no=last_no, rows_max=rows_max, bytes_max=bytes_max
    )
    return [tuple(row) for row in rows]
