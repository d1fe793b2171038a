"""A stack of the benchmark's own: durable, on free ports, in a temporary directory; gone when it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from benchmarks.machine import Meter
from services.local.errors import LocalError
from services.local.ports import free_port
from services.local.postgres import DURABLE
from services.local.process import Child, Command
from services.local.settings import LocalSettings
from services.local.stack import ROOT, Stack
from shared.postgres.sql import load
from shared.settings import ShardAddress, parse_shards

SQL = load(Path(__file__).parent / "sql")
# One setting for every side of every scenario: room for the tables of the larger backlogs.
SERVER = {**DURABLE, "shared_buffers": "1GB"}
_START_S_MAX = 60.0


@dataclass(frozen=True)
class BenchStack:
    """A running stack, as scenarios use it. `postgres` is what the server says of itself."""

    queue_url: str
    dag_url: str
    queue_shards: str
    dag_shards: str
    meter: Meter
    postgres: Mapping[str, str]
    # All processes of the queue service; the first is the one of `queue_url`.
    queue_urls: tuple[str, ...] = ()

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

    async def wal_bytes(self) -> float:
        """How much the server has written to its log so far."""
        connection = await self.connect({})
        try:
            return float(await connection.fetchval(SQL.wal_bytes.text))
        finally:
            await connection.close()

    async def transactions(self) -> int:
        """How many transactions this site's database has ended so far."""
        connection = await self.connect({})
        try:
            return int(await connection.fetchval(SQL.transactions.text))
        finally:
            await connection.close()

    async def create_database(self, name: str) -> str:
        """Make an empty database beside ours; its address."""
        connection = await self.connect({})
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return f"{self.dsn.rpartition('/')[0]}/{name}"


@asynccontextmanager
async def open_stack(
    *,
    with_services: bool = True,
    queue_shards: int | None = None,
    dag_shards: int | None = None,
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
        dag_shards=dag_shards,
        postgres_options={**SERVER, **(postgres_options or {})},
    )
    try:
        async with Stack(settings) as stack:
            yield await describe_stack(stack)
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


@asynccontextmanager
async def open_site(
    beside: BenchStack,
    name: str,
    *,
    queue_shards: int = 4,
    dag_shards: int = 2,
    queue_processes: int = 1,
    is_apart: bool = False,
) -> AsyncIterator[BenchStack]:
    """Both services once more, on a database of their own of the same server, with a Valkey of their own; with
    `is_apart` the DAG shards have one for themselves, as on another server.

    What is measured on two sites can be measured in turns, though one holds a backlog or an old snapshot: rows
    that a snapshot keeps are kept in its database only.
    """
    place = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    dsn = await beside.create_database(name)
    dag_dsn = await beside.create_database(f"{name}_dags") if is_apart else dsn
    settings = LocalSettings(
        data_dir=place / "data",
        queue_port=free_port(),
        dag_port=free_port(),
        redis_port=free_port(),
        queue_shard_map=f"{dsn}#{queue_shards}",
        dag_shard_map=f"{dag_dsn}#{dag_shards}",
    )
    more: list[Child] = []
    try:
        async with Stack(settings) as stack:
            try:
                urls = [stack.queue_url]
                for number in range(1, queue_processes):
                    child, url = await _one_more_queue(stack, place, number)
                    more.append(child)
                    urls.append(url)
                site = await describe_stack(stack)
                pids = [stack.children["queue"].pid, *(child.pid for child in more)]
                meter = beside.meter.joined({"queue": pids, "dag": stack.children["dag"].pid})
                yield replace(site, meter=meter, queue_urls=tuple(urls))
            finally:
                await asyncio.gather(*(child.stop() for child in more))
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


async def _one_more_queue(stack: Stack, place: Path, number: int) -> tuple[Child, str]:
    """Start one more process of the queue service beside the first one."""
    port = free_port()
    name = f"queue-{number}"
    command = Command(
        name=name,
        argv=(sys.executable, "-m", "services.queue"),
        env={**os.environ, **stack.environment, "HEADGATE_QUEUE_PORT": str(port)},
        cwd=ROOT,
    )
    child = Child(command, log_path=place / f"{name}.log", pid_path=place / f"{name}.pid")
    child.spawn()
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline and child.running:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient() as client:
                if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                    return child, url
        await asyncio.sleep(0.05)
    obituary = child.obituary() if not child.running else f"{name} was not ready in time"
    await child.stop()
    raise LocalError(obituary)


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
        (stack.queue_url,),
    )
