"""procrastinate over psycopg. Best settings found: two worker processes with concurrency 10 each, LISTEN/NOTIFY
on, successful jobs deleted, jobs added by batch_defer.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
from lines import Load, serve

CONCURRENCY = 10


async def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.disable(logging.WARNING)
    connector = procrastinate.PsycopgConnector(conninfo=settings["dsn"], min_size=4, max_size=CONCURRENCY + 8)
    app = procrastinate.App(connector=connector)

    @app.task(name="job")
    async def job(p: str, at: float | None = None) -> None:
        load.ran(at)

    async def send(jobs: list[dict[str, Any]]) -> None:
        await job.batch_defer_async(*jobs)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=load.concurrency or CONCURRENCY,
                delete_jobs="successful",
                install_signal_handlers=False,
                listen_notify=True,
                fetch_job_polling_interval=0.5,
            )
        )
        try:
            yield
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

    load = Load(send=send, working=working, window=400)
    async with app.open_async():
        if settings["first"]:
            await app.schema_manager.apply_schema_async()
        versions = {"procrastinate": importlib.metadata.version("procrastinate")}
        await serve(
            versions, {"cycle": load.cycle, "drain": load.drain, "fill": load.fill, "latency": load.latency}
        )


asyncio.run(main())
