"""A Postgres and its standby behind one address; the standby falls behind, or never does, and takes over."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from tests.support.databases import Database, Databases
from tests.support.ports import free_port
from tests.support.proxy import Proxy

_OPTIONS = {**VOLATILE, "shared_buffers": "16MB", "wal_level": "replica", "max_wal_senders": "2"}
_WAIT_S = 60.0


class _Standby(Postgres):
    async def copy(self, primary: Postgres) -> None:
        """Begin as what the primary is now, and follow it."""
        dsn = primary.dsn("postgres")
        argv = ["pg_basebackup", "-d", dsn, "-D", str(self._data_dir), "-R", "--checkpoint=fast", "--no-sync"]
        await self._run(argv)


class Pair:
    """`database` is reached through the address that leads to the server in charge."""

    def __init__(self, primary: Postgres, standby: Postgres, proxy: Proxy, database: Database) -> None:
        self.primary = primary
        self.standby = standby
        self._proxy = proxy
        self._name = database.name
        dsn = proxy.dsn(database.dsn)
        shards = (f"{dsn}#{maps.rpartition('#')[2]}" for maps in (database.queue_shards, database.dag_shards))
        self.database = Database(database.name, dsn, *shards)

    async def wait_for_standby(self) -> None:
        """From now on no commit is answered that the standby does not have."""
        await self._on(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await self._on(self.primary, "SELECT pg_reload_conf()")
        await self._until(
            self.primary, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')"
        )

    async def cut_off(self) -> None:
        """The standby has all that was committed until now, and hears of nothing that comes."""
        reached = await self._on(self.primary, "SELECT pg_current_wal_lsn()::text")
        await self._until(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{reached}'")
        await self._on(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        await self._on(self.standby, "SELECT pg_reload_conf()")
        await self._until(self.primary, "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)")

    async def fail_over(self) -> None:
        """The primary is gone; the standby takes over at its address, without what it has not heard of."""
        os.kill(self.primary.child.pid, signal.SIGKILL)
        self._proxy.server_port = self.standby.settings.port
        self._proxy.cut()
        assert await self._on(self.standby, "SELECT pg_promote()")

    async def _until(self, server: Postgres, question: str) -> None:
        async with asyncio.timeout(_WAIT_S):
            while not await self._on(server, question):
                await asyncio.sleep(0.01)

    async def _on(self, server: Postgres, sql: str) -> Any:
        connection = await asyncpg.connect(server.dsn(self._name))
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()


@asynccontextmanager
async def replicated(
    directory: Path, *, queue_shards: int = 1, dag_shards: int = 1, synchronous: bool = False
) -> AsyncIterator[Pair]:
    """A migrated database on a primary that streams to a standby; `synchronous`: commits wait for that."""

    def settings(name: str) -> PostgresSettings:
        (directory / name).mkdir()
        return PostgresSettings(directory / name / "data", free_port(), directory / name, options=_OPTIONS)

    primary, standby = Postgres(settings("primary")), _Standby(settings("standby"))
    try:
        await primary.start()
        database = await Databases(primary.dsn()).create(queue_shards, dag_shards)
        await standby.copy(primary)
        await standby.start()
        async with Proxy(primary.dsn()) as proxy:
            pair = Pair(primary, standby, proxy, database)
            if synchronous:
                await pair.wait_for_standby()
            yield pair
    finally:
        for server in (primary, standby):
            await server.stop()
            server.remove()
