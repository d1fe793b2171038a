"""Makes statements meet on purpose: holds a DAG's row lock, and sees who waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.dag_world import DagWorld

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0
"""


@asynccontextmanager
async def locked(world: DagWorld, dag: str) -> AsyncIterator[Any]:
    """The DAG's row is locked inside the block; yields a coroutine that waits until `n` others wait for it."""
    connection = await world.connect()
    watcher = await world.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT FROM dag WHERE id = $1 FOR UPDATE", dag)

    async def until_waiting(count: int) -> None:
        async with asyncio.timeout(60):
            while await watcher.fetchval(WAITING) < count:
                await asyncio.sleep(0.005)

    try:
        yield until_waiting
    finally:
        await transaction.rollback()
        await connection.close()
        await watcher.close()
