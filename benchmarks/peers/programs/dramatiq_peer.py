"""dramatiq over Redis: plain functions in the threads of its worker, which runs in this process as its command
would run it. Best settings found: 8 threads in each of two processes, results not kept.
"""

import asyncio
import importlib.metadata
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from lines import Load, serve

THREADS = 8


async def main() -> None:
    settings = json.loads(sys.argv[1])
    logging.disable(logging.WARNING)
    broker = RedisBroker(url=settings["redis_url"])
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="jobs")
    def job(p: str, at: float | None = None) -> None:
        load.ran(at)

    def put(jobs: list[dict[str, Any]]) -> None:
        for one in jobs:
            job.send(**one)

    async def send(jobs: list[dict[str, Any]]) -> None:
        await asyncio.to_thread(put, jobs)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        worker = dramatiq.Worker(broker, worker_threads=load.concurrency or THREADS)
        worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(worker.stop)

    load = Load(send=send, working=working, window=1_000)
    await serve({"dramatiq": importlib.metadata.version("dramatiq")}, {"drain": load.drain, "fill": load.fill})


asyncio.run(main())
