"""Fresh, migrated databases: migrated once into a template, then copied."""

import asyncio
import itertools
import os
from dataclasses import dataclass
from typing import Any

import asyncpg

from migrations.shard import upgrade
from shared.settings import ShardAddress, parse_shards
from tests.support.kept_connections import forget_connections


@dataclass(frozen=True)
class Database:
    """A database of its own with the schemas `queue_000`, ... and `dag_000`, ..., all at head.

    `queue_shards` and `dag_shards` are shard maps as HEADGATE_QUEUE_SHARDS and HEADGATE_DAG_SHARDS take them.
    """

    name: str
    dsn: str
    queue_shards: str
    dag_shards: str

    @property
    def addresses(self) -> list[ShardAddress]:
        """All shards, the queue's first."""
        return parse_shards(self.queue_shards, "queue") + parse_shards(self.dag_shards, "dag")

    async def connect(self, schema: str) -> Any:
        """A plain asyncpg connection to one shard; the caller closes it."""
        return await asyncpg.connect(self.dsn, server_settings={"search_path": schema})


class Databases:
    """Makes databases on one server and drops them."""

    def __init__(self, admin_dsn: str) -> None:
        self._admin_dsn = admin_dsn
        self._base, _, _ = admin_dsn.rpartition("/")
        self._prefix = f"test_{os.getpid()}"
        self._numbers = itertools.count(1)
        self._templates: dict[tuple[int, int], Database] = {}
        # One at a time: a template that is being copied, and alembic's context, have room for one.
        self._turn = asyncio.Lock()

    async def create(self, queue_shards: int = 4, dag_shards: int = 2) -> Database:
        """A fresh database with so many migrated shards of each service."""
        async with self._turn:
            template = await self._template(queue_shards, dag_shards)
            made = self._named(f"{self._prefix}_{next(self._numbers)}", queue_shards, dag_shards)
            await self._execute(f"CREATE DATABASE {made.name} TEMPLATE {template.name} STRATEGY FILE_COPY")
        return made

    async def create_empty(self, queue_shards: int = 2, dag_shards: int = 1) -> Database:
        """A fresh database in which nothing was migrated yet."""
        made = self._named(f"{self._prefix}_{next(self._numbers)}", queue_shards, dag_shards)
        await self._execute(f"CREATE DATABASE {made.name}")
        return made

    async def drop(self, database: Database) -> None:
        """Drop a database, whoever is connected to it."""
        forget_connections(database.dsn)
        await self._execute(f"DROP DATABASE IF EXISTS {database.name} WITH (FORCE)")

    async def drop_templates(self) -> None:
        """Drop what `create` copies from."""
        for template in self._templates.values():
            await self.drop(template)
        self._templates.clear()

    async def _template(self, queue_shards: int, dag_shards: int) -> Database:
        counts = (queue_shards, dag_shards)
        if counts not in self._templates:
            template = self._named(f"{self._prefix}_of_{queue_shards}_{dag_shards}", *counts)
            await self._execute(f"CREATE DATABASE {template.name}")
            for address in template.addresses:
                await upgrade(address)
            self._templates[counts] = template
        return self._templates[counts]

    def _named(self, name: str, queue_shards: int, dag_shards: int) -> Database:
        dsn = f"{self._base}/{name}"
        return Database(name, dsn, f"{dsn}#{queue_shards}", f"{dsn}#{dag_shards}")

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._admin_dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()
