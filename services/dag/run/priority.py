"""How soon items of DAGs with a `priority` are to be served: an estimate, made when an item is sent.

The rank of a node is the number of nodes in the longest chain behind it. It is worked out from all edges of
the DAG, off its lock, and kept in memory until the structure changes, then at most once in a while: between
two looks new nodes have rank 0. Nothing depends on it but the order of service.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from services.dag import store
from services.dag.model import NODE_BITS, DagNo, Item, NodeNo, dag_of
from services.dag.run.context import Context
from shared.postgres.history import Edition
from shared.shards.shard_map import Shard

_DAGS_KEPT = 64
_PAGE_EDGES = 5_000


class _KnownRanks(NamedTuple):
    version: int
    read_at_s: float
    ranks: Mapping[int, int]


class Ranks:
    """The ranks of the DAGs that this process has lately sent items of."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._known: OrderedDict[tuple[Edition, int], _KnownRanks] = OrderedDict()

    async def lift(self, shard: Shard, items: Mapping[NodeNo, Item]) -> dict[int, int]:
        """By how much the priority of each item is to be lowered, by its node's number; without those of 0."""
        found: dict[int, int] = {}
        for no, item in items.items():
            lifts = item.lifts
            if lifts is None:
                continue
            lift = lifts.started
            if lifts.per_level:
                ranks = await self._of(shard, dag_of(no), lifts.version)
                lift += lifts.per_level * min(ranks.get(no, 0), self._settings.priority_levels_max)
            if lift:
                found[no] = lift
        return found

    async def _of(self, shard: Shard, dag_no: DagNo, version: int) -> Mapping[int, int]:
        key = (shard.history.edition, dag_no)
        now_s = self._context.clock.monotonic_s()
        known = self._known.get(key)
        if known is None or (
            known.version != version and now_s - known.read_at_s >= self._settings.priority_refresh_s
        ):
            edges = await self._edges(shard, dag_no)
            known = _KnownRanks(version, now_s, await asyncio.to_thread(ranks_of, edges))
            self._known[key] = known
        self._known.move_to_end(key)
        self._forget()
        return known.ranks

    def _forget(self) -> None:
        """Keep to the bounds; the last one that was asked for stays."""
        kept = sum(len(each.ranks) for each in self._known.values())
        while len(self._known) > 1 and (len(self._known) > _DAGS_KEPT or kept > self._settings.priority_ranks_max):
            _, forgotten = self._known.popitem(last=False)
            kept -= len(forgotten.ranks)

    async def _edges(self, shard: Shard, dag_no: DagNo) -> Sequence[tuple[int, int]]:
        """All edges, or none of a DAG that has over `priority_edges_max`."""
        base = dag_no << NODE_BITS
        after = (base - 1, -1)
        edges: list[tuple[int, int]] = []
        while page := await store.edges.edges_page(shard, after, base + (1 << NODE_BITS) - 1, _PAGE_EDGES):
            edges += page
            if len(edges) > self._settings.priority_edges_max:
                return []
            after = page[-1]
        return edges


def ranks_of(edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The number of nodes in the longest chain behind each; nodes without edges are left out."""
    ups: dict[int, list[int]] = {}
    waits: dict[int, int] = {}
    for up, down in edges:
        ups.setdefault(down, []).append(up)
        waits[up] = waits.get(up, 0) + 1
    ranks = dict.fromkeys([*ups, *waits], 0)
    order = [no for no in ranks if no not in waits]
    for no in order:
        for up in ups.get(no, ()):
            ranks[up] = max(ranks[up], ranks[no] + 1)
            waits[up] -= 1
            if waits[up] == 0:
                order.append(up)
    return ranks
