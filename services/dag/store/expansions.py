"""The statements about nodes that have expanded themselves, bound; they expect the DAG's lock."""

from __future__ import annotations

from collections.abc import Sequence

from services.dag.model import Node, NodeNo
from services.dag.store.dags import SQL
from shared.postgres.connections import Transaction


async def insert(tx: Transaction, no: NodeNo, children: Sequence[NodeNo]) -> None:
    """A node has these children now."""
    await tx.fetch(SQL.insert_expansion, node_no=no, child_nos=children)


async def descendants(tx: Transaction, nos: Sequence[NodeNo]) -> list[tuple[NodeNo, Node]]:
    """(node, child) for the children of these nodes, and the children's, however deep."""
    rows = await tx.fetch(SQL.descendants, nos=nos)
    return [(root, Node(*columns)) for root, *columns in rows]


async def downstreams(tx: Transaction, no: NodeNo) -> list[Node]:
    """The nodes that wait, or have waited, for a node."""
    return [Node(*row) for row in await tx.fetch(SQL.downstream_nodes, no=no)]
