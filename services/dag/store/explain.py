"""The statements behind explanations, bound; no locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.dag.model import DagNo, NodeNo, NodeState
from services.dag.store.dags import SQL
from services.dag.store.edges import ExternalName
from shared.postgres.rows import column_of, rows_of
from shared.shards.shard_map import Shard


class WaitedNode(NamedTuple):
    """A node that its DAG waits for."""

    no: NodeNo
    key: str
    item_id: str
    state: NodeState
    generation: int
    topic: str
    sub: bool
    timer: bool
    created_at: datetime
    released_at: datetime | None
    ext_left: int
    upstreams: int


class RunningDag(NamedTuple):
    """A DAG that runs and has externals, and of it a node that nothing but these keeps; without a `no` none is."""

    dag_id: str
    dag_name: str | None
    dag_key: str | None
    blocked: int
    no: NodeNo | None
    key: str
    external: str
    ext_left: int
    generation: int
    item_id: str
    created_at: datetime
    upstreams: int


class ChainNode(NamedTuple):
    """How long a node took from release to end, and since when it is out, in seconds."""

    no: NodeNo
    state: NodeState
    topic: str
    took_s: float | None
    out_s: float | None


async def frontier_page(shard: Shard, after_no: int, last_no: int, rows_max: int) -> list[WaitedNode]:
    """Nodes after `after_no` that are released, or kept by something that is no upstream."""
    values = {"after_no": after_no, "last_no": last_no, "rows_max": rows_max}
    return await rows_of(WaitedNode, shard.pool, SQL.frontier_page, **values)


async def upstreams_ended(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, datetime | None]:
    """When the last upstream that has ended did so, by node."""
    return dict(await shard.pool.fetch(SQL.upstreams_ended, nos=nos))


async def open_externals(shard: Shard, dag_no: DagNo, keys: Sequence[str]) -> list[ExternalName]:
    """The externals of these nodes that are not resolved."""
    return await rows_of(ExternalName, shard.pool, SQL.open_externals, dag_no=dag_no, keys=keys)


async def kept_by_externals(
    shard: Shard, namespace: str, *, after_id: str, dags_max: int, externals_max: int
) -> list[RunningDag]:
    """DAGs after `after_id`, oldest first, with what keeps them if it is an external."""
    values = {"after_id": after_id, "dags_max": dags_max, "externals_max": externals_max}
    return await rows_of(RunningDag, shard.pool, SQL.kept_by_externals, namespace=namespace, **values)


async def unsent(shard: Shard, nos: Sequence[NodeNo]) -> set[NodeNo]:
    """Which of these nodes have something on the outbox."""
    return set(await column_of(NodeNo, shard.pool, SQL.unsent, nos=nos))


async def chain_nodes(shard: Shard, after_no: int, last_no: int, rows_max: int) -> list[ChainNode]:
    """Nodes after `after_no`."""
    values = {"after_no": after_no, "last_no": last_no, "rows_max": rows_max}
    return await rows_of(ChainNode, shard.pool, SQL.chain_nodes, **values)


async def keys_of(shard: Shard, nos: Sequence[NodeNo]) -> dict[NodeNo, str]:
    """Keys of nodes by number."""
    return {row["no"]: row["key"] for row in await shard.pool.fetch(SQL.nodes_by_no, nos=nos)}
