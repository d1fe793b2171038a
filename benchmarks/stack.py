"""A stack of the benchmark's own: durable, on free ports, in a temporary directory; gone when it is left."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.machine import Meter
from services.local.ports import free_port
from services.local.postgres import DURABLE
from services.local.settings import LocalSettings
from services.local.stack import Stack
from shared.settings import ShardAddress, parse_shards


@dataclass(frozen=True)
class BenchStack:
    """A running stack, as scenarios use it. `postgres` is what the server says of itself."""

    queue_url: str
    dag_url: str
    queue_shards: str
    dag_shards: str
    meter: Meter
    postgres: Mapping[str, str]

    @property
    def dsn(self) -> str:
        """The database that holds all shards."""
        return self.queue_addresses[0].dsn

    @property
    def queue_addresses(self) -> list[ShardAddress]:
        """The queue's shards."""
        return parse_shards(self.queue_shards, "queue")

    async def connect(self, settings: Mapping[str, str], *, database: str | None = None) -> Any:
        """A plain connection with these session settings."""
        return await asyncpg.connect(self.dsn, database=database, server_settings=dict(settings))


@asynccontextmanager
async def open_stack(
    *,
    with_services: bool = True,
    queue_shards: int | None = None,
    postgres_options: Mapping[str, str] | None = None,
) -> AsyncIterator[BenchStack]:
    """Start servers, migrate them and, unless told otherwise, start both services; stop and delete everything.

    Raises LocalError when something cannot start.
    """
    place = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    settings = LocalSettings(
        data_dir=place / "data",
        queue_port=free_port(),
        dag_port=free_port(),
        postgres_port=free_port(),
        redis_port=free_port(),
        with_services=with_services,
        queue_shards=queue_shards,
        postgres_options={**DURABLE, **(postgres_options or {})},
    )
    try:
        async with Stack(settings) as stack:
            yield await describe_stack(stack)
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


async def describe_stack(stack: Stack) -> BenchStack:
    """A running stack, as scenarios use it."""
    roots = {name: child.pid for name, child in stack.children.items()}
    queue_shards = stack.environment["HEADGATE_QUEUE_SHARDS"]
    dsn = parse_shards(queue_shards, "queue")[0].dsn
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
    connection = await asyncpg.connect(dsn)
    try:
        postgres = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in names}
    finally:
        await connection.close()
    return BenchStack(
        stack.queue_url,
        stack.dag_url,
        queue_shards,
        stack.environment["HEADGATE_DAG_SHARDS"],
        Meter(roots),
        postgres,
    )
