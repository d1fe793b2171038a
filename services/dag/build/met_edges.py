"""Edges that a call names and that change nothing: into what has begun, from what has succeeded.

They are not kept, so the DAG's order need not know them, and no call has to read it for their sake. Whether one
would close a cycle is looked for from its upstream upwards, as far as a call can afford under the DAG's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.dag import store
from services.dag.build import addition
from services.dag.build.addition import Existing
from services.dag.graph import sort
from services.dag.model import NewEdge
from shared.postgres.connections import Transaction

_EDGES_ABOVE_MAX = 5_000


async def check(tx: Transaction, met: Sequence[NewEdge], existing: Existing) -> None:
    """Refuse edges that would close a cycle with each other and with what leads to them.

    Raises:
        Cycle
    """
    nodes = existing.nodes
    edges = [(nodes[edge.upstream].no, nodes[edge.downstream].no) for edge in met]
    ups = list(dict.fromkeys(up for up, _ in edges))
    edges += await store.edges.edges_above(tx, ups, _EDGES_ABOVE_MAX)
    _, cycle = sort(list(dict.fromkeys(no for edge in edges for no in edge)), edges)
    if cycle:
        keys = {node.no: node.key for node in await store.dags.nodes_by_no(tx, cycle)}
        raise addition.cycle_error([keys[no] for no in cycle])
