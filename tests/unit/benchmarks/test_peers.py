"""The loop that counts the jobs of every Python peer: what it gets wrong would flatter or wrong a peer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.peers.process import ALWAYS, DAGS, DURABLE_QUEUES, PROGRAMS, QUEUES
from benchmarks.peers.programs.lines import Load


class InMemory:
    """A queue whose jobs are gone as soon as they run."""

    def __init__(self, window: int) -> None:
        self.jobs: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.most = self.workers = 0
        self.load = Load(send=self.send, working=self.working, window=window)

    async def send(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            self.jobs.put_nowait(job)
        self.most = max(self.most, self.jobs.qsize())
        await asyncio.sleep(0)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def work() -> None:
            while True:
                self.load.ran((await self.jobs.get()).get("at"))

        self.workers += 1
        task = asyncio.create_task(work())
        yield
        task.cancel()
        self.workers -= 1


def answers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line[1:]) for line in capsys.readouterr().out.splitlines() if line.startswith("@")]


async def test_only_jobs_that_ran_are_counted_and_few_are_unfinished(capsys: pytest.CaptureFixture[str]) -> None:
    queue = InMemory(window=50)
    await queue.load.cycle({"batch": 10, "clients": 2, "warm_s": 0.01, "seconds": 0.05})
    begun, counted = answers(capsys)
    assert begun == {"begun": True}
    assert 0 < counted["items"] <= queue.load.done == queue.load.sent
    assert queue.most <= 50 + 2 * 10 and queue.workers == 0


async def test_every_scheduled_job_has_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    queue = InMemory(window=50)
    await queue.load.latency({"rate": 500.0, "seconds": 0.1, "warm_s": 0.0, "seed": 1})
    _, measured = answers(capsys)
    assert measured["lost"] == 0 and len(measured["latencies_ms"]) == queue.load.sent > 10


def test_every_peer_has_a_program_and_the_durable_ones_wait_for_the_disk() -> None:
    assert all((PROGRAMS / peer.program).exists() for peer in (*QUEUES, *DAGS))
    assert {peer.name for peer in QUEUES} - {peer.name for peer in DURABLE_QUEUES} == {
        peer.name for peer in QUEUES if peer.redis is not None and peer.redis != ALWAYS
    }
