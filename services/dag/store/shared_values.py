"""The statements about values that the jobs of a DAG share, bound."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from services.dag.model import DagNo
from services.dag.store.dags import SQL
from shared.shards.shard_map import Shard


class Value(NamedTuple):
    """A value as JSON text."""

    key: str
    value: str
    version: int
    updated_at: datetime


class ValueWritten(NamedTuple):
    """How a write went; see `put_value`."""

    status: str
    version: int
    updated_at: datetime


async def put(
    shard: Shard,
    dag_id: str,
    namespace: str,
    key: str,
    value: str,
    *,
    version: int | None,
    write_id: str,
    keys_max: int,
    bytes_max: int,
    writes_max: int,
) -> ValueWritten:
    """Write a value, if it has this version (0: none; None: any)."""
    row = await shard.pool.row(
        SQL.put_value,
        dag_id=dag_id,
        namespace=namespace,
        key=key,
        value=value,
        version=version,
        write_id=write_id,
        keys_max=keys_max,
        bytes_max=bytes_max,
        writes_max=writes_max,
    )
    return ValueWritten(*row)


async def get(shard: Shard, dag_id: str, namespace: str, key: str) -> tuple[bool, Value | None]:
    """Whether there is such a DAG, and its value of this key."""
    row = await shard.pool.row(SQL.get_value, dag_id=dag_id, namespace=namespace, key=key)
    return row is not None, Value(*row) if row is not None and row["key"] is not None else None


async def page(shard: Shard, dag_no: DagNo, after_key: str, *, rows_max: int, bytes_max: int) -> list[Value]:
    """The values after a key, in the order of their keys; the last one reaches the bound."""
    rows = await shard.pool.fetch(
        SQL.values_page, dag_no=dag_no, after_key=after_key, rows_max=rows_max, bytes_max=bytes_max
    )
    return [Value(*row) for row in rows]
