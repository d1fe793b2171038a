"""What surrounds nodes: upstreams, downstreams and externals, for as many nodes as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.dag import store
from services.dag.model import Dag
from services.dag.store.reads import DeclaredExternal, Downstream, ShownNode, Upstream
from shared.shards.shard_map import Shard


class Surroundings(NamedTuple):
    """Nodes' rows and what surrounds them; `is_cut` where that is not all, of a single one."""

    rows: Sequence[ShownNode]
    upstreams: Sequence[Upstream]
    downstreams: Sequence[Downstream]
    externals: Sequence[DeclaredExternal]
    is_cut: bool = False


async def of(shard: Shard, dag: Dag, rows: Sequence[ShownNode], bytes_max: int) -> Surroundings:
    """Of the first nodes all, of each kind no more than so many bytes; of a node alone as much as that."""
    nos = [row.no for row in rows]
    numbers = {row.key: row.no for row in rows}
    if not nos:
        return Surroundings([], [], [], [])
    upstreams = await store.reads.upstreams_of(shard, nos, bytes_max, over=dag.over)
    downstreams = await store.reads.downstreams_of(shard, nos, bytes_max, over=dag.over)
    externals = await store.reads.externals_of(shard, dag.no, list(numbers), bytes_max, over=dag.over)
    cut = [found[-1].no for found in (upstreams, downstreams) if found and found[-1].bytes >= bytes_max]
    if externals and externals[-1].bytes >= bytes_max:
        cut.append(numbers[externals[-1].node_key])
    if not cut:
        return Surroundings(rows, upstreams, downstreams, externals)
    told = [row for row in rows if row.no < min(cut)] or rows[:1]
    known = {row.no for row in told}
    return Surroundings(
        told,
        [each for each in upstreams if each.no in known],
        [each for each in downstreams if each.no in known],
        [each for each in externals if numbers[each.node_key] in known],
        is_cut=min(cut) in known,
    )
