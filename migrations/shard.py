"""Migrate one shard, under a lock that keeps a second migrator out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from shared.postgres.schema import head
from shared.settings import ShardAddress, fenced

CONNECT_TIMEOUT_S = 10.0
# How long a statement may wait for a table's lock: others queue behind the waiting one.
_LOCK_TIMEOUT = "10s"


class MigrationFailed(Exception):
    """A revision could not be applied; the shard stays at the last whole one."""


def service_of(address: ShardAddress) -> str:
    """`queue` or `dag`: what stands before the number in the schema's name."""
    return address.schema.split("_")[-2]


async def upgrade(address: ShardAddress) -> tuple[str | None, str | None]:
    """Bring one shard to head, creating its schema if it is missing; answer its revision before and after.

    Alembic's context is process-global: never run two of these in one process at a time.

    Raises:
        MigrationFailed: a revision was refused by the database.
        OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the server cannot be reached or refuses us.
    """
    async with _locked(address) as connection:
        before = await _revision(connection, address)
        if before == head(service_of(address)):
            return before, before
        if await connection.fetchval("SELECT to_regnamespace($1)", fenced(address.schema)) is not None:
            # A new schema beside it would be a second shard of the same number.
            raise MigrationFailed("it is being moved, or was moved away from this server: look at the shard map")
        # Most starts find nothing to do: alembic and what it imports cost more than all the rest.
        from migrations.revisions import run

        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"')
        await run(address)
        return before, await _revision(connection, address)


async def revision(address: ShardAddress) -> str | None:
    """The shard's revision; None when it was never migrated."""
    connection = await connect(address)
    try:
        return await _revision(connection, address)
    finally:
        await connection.close()


async def connect(address: ShardAddress) -> Any:
    """A connection whose search_path is the shard's schema, and nothing else."""
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
    connection = await connect(address)
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
