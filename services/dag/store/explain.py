"""The statements behind explanations, bound; no locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from services.dag.model import DagNo
from services.dag.store.dags import SQL
from shared.shards.shard_map import Shard


async def frontier_page(shard: Shard, after_no: int, last_no: int, rows_max: int) -> list[Any]:
    """Nodes after `after_no` that are released, or kept by something that is no upstream."""
    return await shard.pool.fetch(SQL.frontier_page, after_no=after_no, last_no=last_no, rows_max=rows_max)


async def upstreams_ended(shard: Shard, nos: Sequence[int]) -> dict[int, datetime | None]:
    """When the last upstream that has ended did so, by node."""
    return {row["no"]: row["at"] for row in await shard.pool.fetch(SQL.upstreams_ended, nos=nos)}


async def open_externals(shard: Shard, dag_no: DagNo, keys: Sequence[str]) -> list[tuple[str, str]]:
    """(node key, name) of the externals of these nodes that are not resolved."""
    rows = await shard.pool.fetch(SQL.open_externals, dag_no=dag_no, keys=keys)
    return [(row["node_key"], row["name"]) for row in rows]


async def unsent(shard: Shard, nos: Sequence[int]) -> set[int]:
    """Which of these nodes have something on the outbox."""
    return {row["no"] for row in await shard.pool.fetch(SQL.unsent, nos=nos)}


async def chain_nodes(shard: Shard, after_no: int, last_no: int, rows_max: int) -> list[Any]:
    """(no, state, topic, took_s, out_s) after `after_no`."""
    return await shard.pool.fetch(SQL.chain_nodes, after_no=after_no, last_no=last_no, rows_max=rows_max)


async def keys_of(shard: Shard, nos: Sequence[int]) -> dict[int, str]:
    """Keys of nodes by number."""
    return {row["no"]: row["key"] for row in await shard.pool.fetch(SQL.nodes_by_no, nos=nos)}
