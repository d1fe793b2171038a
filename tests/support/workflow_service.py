"""The DAG service as a worker's driver meets it: one run in memory, and a test that says what happens when."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headgate.workflow.driving.driver import Cores, Driver
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.turns import Lease, Page, Turn, TurnAnswer


class Killed(BaseException):
    """The worker is gone."""


class Service:
    """One run. The test says what happens before a turn is written, after it, and before it is answered."""

    def __init__(self, run: MemoryRun) -> None:
        self.run = run
        self.before_turn: Callable[[], Any] = lambda: None
        self.after_turn: Callable[[], Any] = lambda: None
        self.turns: list[Turn] = []
        self.read_from: list[int] = []
        self.page_max = 1_000
        self.changed, self.waiting = asyncio.Event(), asyncio.Event()
        self.waits = True

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        self.read_from.append(after)
        while wait_s and len(self.run) == after:
            self.changed.clear()
            await self.changed.wait()
        await asyncio.sleep(0)
        return self.run.history(lease, after, self.page_max)

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        await asyncio.sleep(0)
        self.before_turn()
        answer = self.run.turn(lease, turn)
        self.turns.append(turn)
        self.after_turn()
        while turn.wait_s and self.run.is_awake and self.run.is_idle:
            self.changed.clear()
            self.waiting.set()
            await self.changed.wait()
            self.waiting.clear()
            if not self.waits:
                turn = replace(turn, wait_s=0.0)
            answer = self.run.turn(lease, turn)
        return answer

    def tell(self, *, waits: bool = True) -> None:
        """Something has happened; without `waits` it is the time, which is over."""
        self.waits = waits
        self.changed.set()


def once(what: Callable[[], Any]) -> Callable[[], Any]:
    left = [what]
    return lambda: left.pop()() if left else None


def kill() -> None:
    raise Killed


def driver_of(service: Service, function: Callable[..., Any], **settings: Any) -> Driver:
    return Driver({"order": function}, service, **settings)


async def to_the_end(service: Service, driver: Driver, *, deaths_max: int = 0) -> None:
    """Deliver the decider's item and end tasks until the run has ended; another worker follows a dead one."""
    run = service.run
    for _ in range(1_000):
        while run.is_awake:
            try:
                await driver.work("order", run.lease)
            except Killed:
                deaths_max -= 1
                driver.cores = Cores()
                assert deaths_max >= 0
        if run.is_ended:
            return
        waiting = [key for key, node in run.nodes.items() if node["state"] == "added"]
        assert waiting, "nothing to wait for"
        run.finish(waiting[0], output=f"output of {waiting[0]}")
    raise AssertionError("the run does not end")
