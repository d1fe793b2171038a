"""Limits of topics and keys hold over all processes while Redis is lost: they are kept by the shards alone."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate import AsyncClient, Leased
from services.local.valkey import Valkey, ValkeySettings
from tests.support.databases import Database
from tests.support.fleet import fleet_on
from tests.support.ports import free_port

CONCURRENCY, KEY_CONCURRENCY, RATE, BURST = 4, 2, 5.0, 10


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A Valkey of the test's own."""
    server = Valkey(ValkeySettings(port=free_port(), run_dir=tmp_path))
    await server.start()
    yield server
    await server.stop()


async def test_limits_are_exact_over_processes_while_redis_is_lost(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with fleet_on(database, valkey.url, tmp_path) as fleet:
        processes = await fleet.add("queue", "q1", "q2")
        clients = [AsyncClient(queue_url=process.url) for process in processes]
        here = clients[0]
        await here.limits.put("few", concurrency=CONCURRENCY)
        await here.limits.put("keys", key_concurrency=KEY_CONCURRENCY)
        await here.limits.put("slow", rate=RATE, burst=BURST)
        await here.enqueue([{"topic": topic} for topic in ("few", "slow") for _ in range(200)])
        await here.enqueue([{"topic": "keys", "fairness_key": f"k{n % 3}", "payload": n % 3} for n in range(200)])
        for client in clients:  # each has heard of the limits
            async with asyncio.timeout(30):
                while (
                    len([found for found in await client.limits.all() if found.topic in ("few", "keys", "slow")])
                    < 3
                ):
                    await asyncio.sleep(0.05)
        os.kill(valkey.child.pid, signal.SIGKILL)
        begun_s = time.monotonic()
        held: list[Leased] = []
        slow: list[Leased] = []
        for _ in range(3):
            for found in await asyncio.gather(*(took(client) for client in clients * 2)):
                held += found[0] + found[1]
                slow += found[2]
            counts = Counter(item.topic for item in held)
            of_keys = Counter(item.payload for item in held if item.topic == "keys")
            assert counts["few"] == CONCURRENCY and max(of_keys.values()) == KEY_CONCURRENCY, (counts, of_keys)
            # By now so many may have been handed out; a machine that is slow had more time.
            assert len(slow) <= BURST + RATE * (time.monotonic() - begun_s) + 1
            await asyncio.gather(*(clients[n % 2].ack([item.ack()]) for n, item in enumerate(held)))
            held.clear()
        assert len(slow) >= BURST
        for client in clients:
            await client.aclose()


async def took(client: AsyncClient) -> list[list[Leased]]:
    """What one consumer of a process is given of each topic."""
    return [await client.dequeue({topic: 50}, wait_s=1.5) for topic in ("few", "keys", "slow")]
