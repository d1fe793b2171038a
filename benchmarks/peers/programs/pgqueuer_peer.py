"""pgqueuer over asyncpg with uvloop. Best settings found: batch_size 100, two such processes, a driver of its own
for producing (a pool of 4), so that a worker's dequeue never waits for an enqueue.
"""

import asyncio
import importlib.metadata
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvloop
from lines import Load, serve
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.core.qm import QueueManager
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 100


async def main() -> None:
    settings = json.loads(sys.argv[1])
    pool = await asyncpg.create_pool(settings["dsn"], min_size=4, max_size=4)
    queries = Queries(AsyncpgPoolDriver(pool))
    if settings["first"]:
        await queries.install()

    async def send(jobs: list[dict[str, Any]]) -> None:
        count = len(jobs)
        payloads: list[bytes | None] = [json.dumps(one).encode() for one in jobs]
        await queries.enqueue(["job"] * count, payloads, [0] * count)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        connection = await asyncpg.connect(settings["dsn"])
        manager = QueueManager(Queries(AsyncpgDriver(connection)))

        @manager.entrypoint("job")
        async def run(job: Job) -> None:
            load.ran(json.loads(job.payload or b"{}").get("at"))

        task = asyncio.create_task(manager.run(batch_size=load.concurrency or BATCH))
        try:
            yield
        finally:
            manager.shutdown.set()
            await task
            await connection.close()

    load = Load(send=send, working=working, window=1_000)
    versions = {"pgqueuer": importlib.metadata.version("pgqueuer")}
    await serve(versions, {"cycle": load.cycle, "drain": load.drain, "fill": load.fill, "latency": load.latency})


uvloop.run(main())
