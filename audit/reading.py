"""Connections to shards, and snapshots of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg

from shared.postgres.session import PINNED
from shared.postgres.sql import Statement, load
from shared.settings import ShardAddress

# By whose shards they are for.
SQL = load(Path(__file__).parent / "sql" / "dag", Path(__file__).parent / "sql" / "queue")

CHUNK_ROWS: int = 2_000
FINDINGS_MAX: int = 10_000


@dataclass(frozen=True)
class Scope:
    """What is looked at. `age_s`: how long something may be on its way before it counts as lost."""

    dag: str | None = None
    since: datetime | None = None
    age_s: float = 300.0


# Told how many rows were looked at.
Tick = Callable[[int], None]


def silent(_rows: int) -> None:
    """Nobody is told."""


class Reader:
    """One connection; statements by name, as in `shared.postgres.connections`."""

    def __init__(self, connection: Any, address: ShardAddress) -> None:
        self.connection = connection
        self.address = address

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """All rows."""
        rows: list[Any] = await self.connection.fetch(statement.text, *statement.args(**values))
        return rows

    async def row(self, statement: Statement, **values: Any) -> Any:
        """The first row, or None."""
        return await self.connection.fetchrow(statement.text, *statement.args(**values))

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """All that is read inside is of one moment; nothing can be written."""
        async with self.connection.transaction(isolation="repeatable_read", readonly=True):
            yield


@asynccontextmanager
async def reader(address: ShardAddress) -> AsyncIterator[Reader]:
    """A connection to one shard, with limits on what a statement may take, and plans as the services have them."""
    session = {
        **PINNED,
        "search_path": address.schema,
        "lock_timeout": "5s",
        "statement_timeout": "10min",
        "idle_in_transaction_session_timeout": "1min",
        "timezone": "UTC",
        "application_name": f"headgate audit {address.schema}",
    }
    connection = await asyncpg.connect(address.dsn, timeout=10.0, server_settings=session)
    try:
        yield Reader(connection, address)
    finally:
        await connection.close()
