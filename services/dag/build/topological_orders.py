"""Topological orders of DAGs that are being built, for cycle checks: a cache of the shard's edges.

An order belongs to a structure version of its DAG. Under the DAG's lock an equal version means that the
order knows every edge; with another one it is read anew, outside the lock, so that completions of a large
DAG do not wait for it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakValueDictionary

from services.dag import store
from services.dag.errors import LimitExceeded
from services.dag.graph import Order
from services.dag.model import NODE_BITS, Dag
from shared.postgres.history import Edition
from shared.shards.shard_map import Shard

_PAGE_EDGES = 20_000
# More than these are for a thread: they would keep the loop.
_EDGES_AT_ONCE_MAX = 5_000
_LATE_EDGES_MAX = 50_000
_MASK = (1 << NODE_BITS) - 1

Key = tuple[Edition, int]


class OrderStale(Exception):
    """The order in memory is of another structure than the locked DAG: load it and try again."""

    def __init__(self, dag: Dag) -> None:
        super().__init__(dag.id)
        self.dag = dag


class Orders:
    """The orders of this process, the most recently used ones that `bytes_max` has room for."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._orders: OrderedDict[Key, Order] = OrderedDict()
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loading = asyncio.Lock()

    def gate(self, dag_id: str) -> asyncio.Lock:
        """One builder of a DAG at a time in this process: the row lock would make them wait anyway, each
        with a connection in its hands."""
        gate = self._gates.get(dag_id)
        if gate is None:
            gate = self._gates[dag_id] = asyncio.Lock()
        return gate

    @property
    def bytes(self) -> int:
        """About what all of them take."""
        return sum(order.bytes for order in self._orders.values())

    def fresh(self, shard: Shard, dag: Dag) -> Order | None:
        """The order of a locked DAG, if this process has it as it stands now."""
        key = (shard.history.edition, dag.no)
        order = self._orders.get(key)
        if order is None or order.version != dag.structure_version:
            return None
        self._orders.move_to_end(key)
        return order

    def empty(self, shard: Shard, dag: Dag) -> Order:
        """The order of a DAG without edges."""
        order = Order()
        order.version = dag.structure_version
        self._keep((shard.history.edition, dag.no), order)
        return order

    async def insert(self, order: Order, edges: Sequence[tuple[int, int]]) -> list[int]:
        """Add edges to an order. Returns [] or, with nothing changed, a cycle that they would close."""
        is_large = order.edges + len(edges) > _EDGES_AT_ONCE_MAX
        cycle = await asyncio.to_thread(order.insert_all, edges) if is_large else order.insert_all(edges)
        self._evict()
        return cycle

    async def load(self, shard: Shard, dag: Dag) -> None:
        """Read a DAG's edges as of the version in `dag`; whether that still holds is seen under its lock.

        Raises:
            LimitExceeded: its order would take more than all orders may.
        """
        key = (shard.history.edition, dag.no)
        async with self._loading:
            ups, downs, count = await self._edges(shard, dag)
            order = Order()
            await asyncio.to_thread(order.load, ups, downs, count)
        order.version = dag.structure_version
        shard.history.check(key[0])
        self._keep(key, order)

    async def _edges(self, shard: Shard, dag: Dag) -> tuple[array[int], array[int], int]:
        """All edges, and a number above those of their nodes."""
        base, count = dag.node_no(0), dag.next_n
        ups, downs = array("I"), array("I")
        after = (base - 1, -1)
        while page := await store.edges.edge_columns(shard, after, dag.node_no(_MASK), _PAGE_EDGES):
            ups += page.ups
            downs += page.downs
            # Nodes that came while the pages were read are beyond `next_n`; the version will not fit then.
            count = max(count, page.ups[-1] + 1, max(page.downs) + 1)
            after = (base + ups[-1], base + downs[-1])
            if Order.loaded_bytes(count, len(ups)) > self._bytes_max:
                raise LimitExceeded("the DAG has too many edges to check others between its nodes for cycles")
        return ups, downs, count

    def _keep(self, key: Key, order: Order) -> None:
        self._orders[key] = order
        self._orders.move_to_end(key)
        self._evict()

    def _evict(self) -> None:
        """Keep to the bound. Where edges came one by one, loading an order anew makes it small again."""
        for key in [key for key, order in self._orders.items() if order.late_edges > _LATE_EDGES_MAX]:
            del self._orders[key]
        total = self.bytes
        while total > self._bytes_max:
            _, order = self._orders.popitem(last=False)
            total -= order.bytes
