"""Backlogs that are there in minutes: written straight into the shards' tables, all shards at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.direct import DirectShard
from benchmarks.stack import BenchStack
from services.queue.enqueue.placement import Placement
from services.queue.settings import QueueSettings
from shared.clock import SystemClock
from shared.postgres.sql import load

SQL = load(Path(__file__).parent / "sql")
_ITEMS_AT_ONCE = 100_000
_NAMESPACE = "default"


async def fill(stack: BenchStack, topics: Sequence[str], items: int, *, spread: bool = False) -> None:
    """Put `items` ready items into the topics, as many into each.

    They lie where calls at an ordinary rate would have put them, each topic on one shard; or, with `spread`,
    where calls at a very high rate would: each topic on all of them, by turns.
    """
    numbers = [address.number for address in stack.queue_addresses]
    placement = Placement(numbers, QueueSettings(), SystemClock(), avoids=lambda _: False, owns=lambda _: True)
    here: dict[int, list[str]] = {number: [] for number in numbers}
    for topic in topics:
        for number in numbers if spread else [placement.choose(_NAMESPACE, topic, 1)]:
            here[number].append(topic)
    each = -(-items // sum(map(len, here.values())))
    await asyncio.gather(
        *(_fill(stack, number, found, each * len(found)) for number, found in here.items() if found)
    )


async def settle(stack: BenchStack) -> None:
    """Collect statistics and write everything to the disk, so that neither happens while it is measured."""
    for address in stack.queue_addresses:
        shard = await DirectShard.open(stack, address.number, {"statement_timeout": "0"})
        try:
            await shard.connection.execute(SQL.tidy.text)
            await shard.connection.execute(SQL.checkpoint.text)
        finally:
            await shard.close()


async def _fill(stack: BenchStack, number: int, topics: Sequence[str], items: int) -> None:
    session = {"statement_timeout": "0", "synchronous_commit": "off"}
    shard = await DirectShard.open(stack, number, session)
    try:
        names = shard.store.names
        refs = await names.make([(_NAMESPACE, topic) for topic in topics])
        topic_ids = [ref.topic_id for ref in refs.values()]
        each = max(1, -(-items // len(topic_ids)))
        first = int(await shard.connection.fetchval(SQL.filled.text))
        for start in range(0, items, _ITEMS_AT_ONCE):
            count = min(_ITEMS_AT_ONCE, items - start)
            await shard.connection.execute(SQL.fill.text, topic_ids, first + start, count, each)
    finally:
        await shard.close()
