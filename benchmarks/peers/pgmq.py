"""pgmq as bare SQL: its own functions, called over asyncpg on 4 connections, on a database of its own.

The SQL is the one that the Python package of the project carries; `--pgmq-sql FILE` takes another. Best settings:
`send_batch`, `read` and the array form of `delete`, one commit each, statements prepared once by asyncpg; a plain
(not partitioned, not unlogged) queue; autovacuum looks every 5 s, as for us.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.floors import CONNECTIONS, Cycle
from benchmarks.load import PAYLOAD
from benchmarks.peers.environment import python_environment, site_packages
from benchmarks.stack import BenchStack
from shared.postgres.sql import load

SQL = load(Path(__file__).parent)
REQUIREMENT = "pgmq==1.1.4"
QUEUE = "bench"
VISIBLE_S = 60


class Pgmq:
    """Connections to a database that holds pgmq. `version` is that of its SQL."""

    def __init__(self, connections: list[Any], version: str) -> None:
        self.connections = connections
        self.version = version

    @classmethod
    async def open(cls, stack: BenchStack, sql: Path | None, *, connections: int = CONNECTIONS) -> Pgmq:
        """Install the package once, make a database and a queue in it. Raises PeerFailed."""
        version = "from a file"
        if sql is None:
            python = await python_environment("pgmq", REQUIREMENT, dependencies=False)
            folder = site_packages(python) / "pgmq" / "sql"
            sql, version = folder / "pgmq.sql", (folder / "VERSION").read_text().strip()
        await stack.create_database("pgmq")
        opened = [await stack.connect({}, database="pgmq") for _ in range(connections)]
        await opened[0].execute(sql.read_text())
        await opened[0].fetch(SQL.pgmq_create.text, QUEUE)
        return cls(opened, version)

    def cycles(self, batch: int, payload: str = PAYLOAD) -> list[Cycle]:
        """One cycle per connection: send, read and delete a batch."""
        return [_cycle(connection, batch, payload) for connection in self.connections]

    async def fill(self, count: int) -> None:
        """Add messages, 1,000 a statement."""
        for first in range(0, count, 1_000):
            messages = [f'"{PAYLOAD}"'] * min(1_000, count - first)
            await self.connections[0].fetch(SQL.pgmq_send.text, QUEUE, messages)

    async def empty(self) -> None:
        """Forget all messages."""
        await self.connections[0].fetch(SQL.pgmq_purge.text, QUEUE)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(connection.close() for connection in self.connections))


def _cycle(connection: Any, batch: int, payload: str) -> Cycle:
    messages = [f'"{payload}"'] * batch

    async def cycle() -> int:
        await connection.fetch(SQL.pgmq_send.text, QUEUE, messages)
        rows = await connection.fetch(SQL.pgmq_read.text, QUEUE, VISIBLE_S, batch)
        await connection.fetch(SQL.pgmq_delete.text, QUEUE, [row["msg_id"] for row in rows])
        return len(rows)

    return cycle
