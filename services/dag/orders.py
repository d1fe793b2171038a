"""Topological orders of DAGs that are being built, for cycle checks; the shard has the truth.

An order belongs to a structure version of its DAG. Under the DAG's lock an equal version means that the
order knows every edge; with another one it is read anew, outside the lock, so that completions of a large
DAG do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from services.dag import store_edges
from services.dag.graph import Order
from services.dag.model import NODE_BITS, Dag
from shared.shards import Shard

_PAGE_EDGES = 20_000
_MASK = (1 << NODE_BITS) - 1

Key = tuple[int, int]


class OrderStale(Exception):
    """The order in memory is of another structure than the locked DAG: load it and try again."""

    def __init__(self, dag: Dag) -> None:
        super().__init__(dag.id)
        self.dag = dag


class Orders:
    """The orders of this process, the most recently used ones up to `edges_max` edges."""

    def __init__(self, edges_max: int) -> None:
        self._edges_max = edges_max
        self._orders: OrderedDict[Key, Order] = OrderedDict()
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def gate(self, dag_id: str) -> asyncio.Lock:
        """One builder of a DAG at a time in this process: the row lock would make them wait anyway, each
        with a connection in its hands."""
        gate = self._gates.get(dag_id)
        if gate is None:
            gate = self._gates[dag_id] = asyncio.Lock()
        return gate

    def fresh(self, shard: Shard, dag: Dag) -> Order | None:
        """The order of a locked DAG, if this process has it as it stands now."""
        order = self._orders.get((shard.number, dag.no))
        if order is None or order.version != dag.structure_version:
            return None
        self._orders.move_to_end((shard.number, dag.no))
        return order

    def empty(self, shard: Shard, dag: Dag) -> Order:
        """The order of a DAG without edges."""
        order = Order()
        order.version = dag.structure_version
        self._orders[shard.number, dag.no] = order
        return order

    async def load(self, shard: Shard, dag: Dag) -> None:
        """Read a DAG's edges as of the version in `dag`; whether that still holds is seen under its lock."""
        base = dag.node_no(0)
        after = (base - 1, -1)
        edges: list[tuple[int, int]] = []
        while True:
            page = await store_edges.edges_page(shard, after, dag.node_no(_MASK), _PAGE_EDGES)
            edges += [(up - base, down - base) for up, down in page]
            if len(page) < _PAGE_EDGES:
                break
            after = page[-1]
        order = Order()
        # Nodes that came while the pages were read are beyond `next_n`; the version will not fit then.
        order.load(edges, max([dag.next_n, *(max(edge) + 1 for edge in edges)]))
        order.version = dag.structure_version
        self._orders[shard.number, dag.no] = order
        self._evict()

    def drop(self, shard: Shard, dag_no: int) -> None:
        """Forget an order that may know edges which were not committed."""
        self._orders.pop((shard.number, dag_no), None)

    def _evict(self) -> None:
        total = sum(order.edges for order in self._orders.values())
        while total > self._edges_max and len(self._orders) > 1:
            _, order = self._orders.popitem(last=False)
            total -= order.edges
