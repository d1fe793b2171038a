"""Runs of a workflow under the load: each is sent a signal, has a job done, and ends with what it was sent."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from headgate import AsyncClient, Job, Worker, Workflow
from headgate._ids import shard_of
from headgate.errors import Conflict, NotFound
from tests.integration.failover.verb import LOSSY, InTime, Verb

_UNDER_WAY_MAX = 2
_AGAIN_S = 3.0


@dataclass
class Run:
    """A run: what it is sent, from when on, its DAG's id, when its start was answered, and what it has come to."""

    number: int
    next_s: float
    dag: str = ""
    answered: float | None = None
    state: str = ""
    output: Any = None
    is_asked: bool = False  # the call that starts it is over


class Runs(Verb):
    """One worker of the tenant, whose code and jobs are those of this shard's name alone."""

    def __init__(self, tenant: str, client: AsyncClient, shard: int, in_time: InTime) -> None:
        super().__init__(tenant, client, shard, in_time)
        self.runs: dict[str, Run] = {}
        self._numbers = count(1)
        self._working: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        worker = Worker(self.client, name=f"{self.tenant}-{self.shard}", lease_s=10.0, wait_s=1.0, drain_s=1.0)

        @worker.task(f"greet-{self.shard}")
        async def greet(job: Job) -> Any:
            job.log(f"greeting {job.payload}")
            return job.payload

        @worker.workflow(f"greeting-{self.shard}")
        async def greeting(wf: Workflow, number: int) -> Any:
            return await wf.call(f"greet-{self.shard}", await wf.receive("go"))

        self._working = asyncio.create_task(worker.run(signals=False))

    async def step(self) -> None:
        if sum(not run.state for run in self.runs.values()) >= _UNDER_WAY_MAX:
            return
        number = next(self._numbers)
        id_ = f"{self.shard}-{number}"
        run = self.runs[id_] = Run(number, time.monotonic())
        async with self.in_time("start a run"):
            made = await self.client.workflows.start(f"greeting-{self.shard}", number, id=id_)
            run.dag, run.answered = str(made.run), time.monotonic()
        run.is_asked = True

    async def work(self) -> None:
        """Who waits for a run tells it to go on until it has; under one id that is one signal."""
        assert self._working is not None
        if self._working.done():
            self._working.result()
        for id_, run in list(self.runs.items()):
            if run.is_asked and (not run.state or self._may_be_taken_back(run)):
                async with self.in_time(f"look at the run {id_}"):
                    await self._look(id_, run)

    async def _look(self, id_: str, run: Run) -> None:
        handle = self.client.workflows.get(id_)
        try:
            shown = await handle.show()
            run.state, run.output = (shown.state, shown.output) if shown.finished else ("", None)
            is_due = time.monotonic() > run.next_s
            run.next_s = time.monotonic() + _AGAIN_S if is_due else run.next_s
            if is_due and not shown.finished:
                await handle.signal("go", {"n": run.number}, id=f"go {run.number}")
        except NotFound:
            run.state = "never begun" if run.answered is None else "gone"
        except Conflict:
            pass  # it has just ended

    async def close(self) -> None:
        if self._working is not None:
            await self.work()
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    def faults(self, cut_s: float | None) -> Iterator[str]:
        for id_, run in self.runs.items():
            is_lost = run.state == "gone" and self._may_be_lost(run, cut_s)
            if run.state == "succeeded" and run.output != {"n": run.number}:
                yield f"{self.tenant}'s run {id_} was sent {run.number}, and ended with {run.output}"
            elif run.state not in ("succeeded", "never begun") and not is_lost:
                yield f"{self.tenant}'s run {id_} ({run.dag}) is {run.state or 'at work'}"

    @staticmethod
    def _may_be_taken_back(run: Run) -> bool:
        """A failover that lost its tail may have taken an end back that was seen: what was sent is sent again."""
        return run.state == "succeeded" and time.monotonic() > run.next_s

    @staticmethod
    def _may_be_lost(run: Run, cut_s: float | None) -> bool:
        return (
            cut_s is not None
            and run.answered is not None
            and (shard_of(run.dag) == LOSSY and run.answered >= cut_s)
        )
