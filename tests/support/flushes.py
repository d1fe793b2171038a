"""Calls of a queue process that are made to share a flush."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from tests.support.queue_host import QueueHost


async def together(host: QueueHost, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The answers of calls of which each joins a flush of one shard at most; no flush starts before all have."""
    process = host.process
    batchers = [
        *process.enqueues.general.flushes.values(),
        *process.enqueues.named.flushes.values(),
        *process.ack_flushes.flushes.values(),
        *process.revives.flushes.values(),
    ]
    joined, all_joined = [0], asyncio.Event()
    for batcher in batchers:

        async def submit(*args: Any, original: Any = batcher.submit, **named: Any) -> Any:
            joined[0] += 1
            return await original(*args, **named)

        async def run(lane: Any, original: Any = batcher._run) -> None:
            await all_joined.wait()
            await original(lane)

        batcher.submit, batcher._run = submit, run
    try:
        tasks = [asyncio.create_task(call) for call in calls]
        async with asyncio.timeout(30):
            while joined[0] + sum(task.done() for task in tasks) < len(tasks):
                await asyncio.sleep(0)
        all_joined.set()
        return await asyncio.gather(*tasks)
    finally:
        for batcher in batchers:
            del batcher.submit, batcher._run
