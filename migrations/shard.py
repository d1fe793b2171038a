"""Migrate one shard, under a lock that keeps a second migrator out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from shared.settings import ShardAddress

CONNECT_TIMEOUT_S = 10.0
# How long a statement may wait for a table's lock: others queue behind the waiting one.
_LOCK_TIMEOUT = "10s"
_TREE = Path(__file__).resolve().parent


def service_of(address: ShardAddress) -> str:
    """`queue` or `dag`: what stands before the number in the schema's name."""
    return address.schema.rpartition("_")[0]


async def upgrade(address: ShardAddress) -> tuple[str | None, str | None]:
    """Bring one shard to head, creating its schema if it is missing; answer its revision before and after.

    Alembic's context is process-global: never run two of these in one process at a time.

    Raises:
        OSError, asyncpg.PostgresError, sqlalchemy.exc.SQLAlchemyError: the shard stays at the last whole revision.
    """
    async with _locked(address) as connection:
        before = await _revision(connection, address)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"')
        await _run_alembic(address)
        return before, await _revision(connection, address)


async def revision(address: ShardAddress) -> str | None:
    """The shard's revision; None when it was never migrated."""
    connection = await _connect(address)
    try:
        return await _revision(connection, address)
    finally:
        await connection.close()


def config(service: str) -> Config:
    """Alembic's configuration for one service's revisions."""
    tree = str(_TREE).replace("%", "%%")
    made = Config()
    made.set_main_option("script_location", tree)
    made.set_main_option("path_separator", "newline")
    made.set_main_option("version_locations", f"{tree}/{service}/versions")
    made.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return made


async def _connect(address: ShardAddress) -> Any:
    return await asyncpg.connect(
        address.dsn,
        timeout=CONNECT_TIMEOUT_S,
        server_settings={
            "search_path": address.schema,
            "lock_timeout": _LOCK_TIMEOUT,
            "application_name": "headgate-migrations",
        },
    )


@asynccontextmanager
async def _locked(address: ShardAddress) -> AsyncIterator[Any]:
    """A connection that holds the shard's migration lock; a second migrator waits, then finds nothing to do."""
    connection = await _connect(address)
    try:
        # lock_timeout would end the wait for a migrator that is at work, which is no error.
        await connection.execute("SET lock_timeout = 0")
        await connection.execute(
            "SELECT pg_advisory_lock(hashtext('headgate.migrations'), hashtext($1))", address.schema
        )
        yield connection
    finally:
        # Ending the session releases the lock.
        await connection.close()


async def _revision(connection: Any, address: ShardAddress) -> str | None:
    table = await connection.fetchval("SELECT to_regclass($1)", f'"{address.schema}".alembic_version')
    if table is None:
        return None
    found: str | None = await connection.fetchval(f'SELECT version_num FROM "{address.schema}".alembic_version')
    return found


async def _run_alembic(address: ShardAddress) -> None:
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: _connect(address), poolclass=NullPool
    )
    async with engine.connect() as connection:
        await connection.run_sync(_upgrade, address)
    await engine.dispose()


def _upgrade(connection: Connection, address: ShardAddress) -> None:
    alembic = config(service_of(address))
    alembic.attributes["connection"] = connection
    alembic.attributes["schema"] = address.schema
    command.upgrade(alembic, "head")
