"""Workers, a run and everything that may go wrong between them, at random: whatever happens, each command is
written once, the code agrees with the whole log, and the run ends.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate.errors import ConnectionFailed
from headgate.workflow import Workflow
from headgate.workflow.driving.driver import Cores, Driver
from headgate.workflow.driving.threads import CoreThreads
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.local.simulation import replay
from headgate.workflow.turns import Lease, Page, Turn, TurnAnswer
from tests.support import workflow_cases as cases
from tests.support.examples import examples

WORKFLOWS: dict[str, tuple[Callable[..., Any], Any]] = {
    "chain": (cases.chain, 5),
    "gathered": (cases.gathered, ["a", "b", "c", "d"]),
    "raced": (cases.raced, None),
    "group_aborted": (cases.group_aborted, None),
    "nested_timeouts": (cases.nested_timeouts, None),
    "shielded": (cases.shielded, None),
    "swallowed": (cases.swallowed, None),
    "cleaned_up": (cases.cleaned_up, None),
    "asked_for": (cases.asked_for, None),
    "signalled": (cases.signalled, None),
    "everything": (cases.everything, "ada"),
    "failing": (cases.failing, None),
    "continued": (cases.continued, 1),
}
ROUNDS_MAX = 400


async def steps(wf: Workflow, _: Any) -> list[Any]:
    """Steps beside calls, some of which are given up."""

    async def slow(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        return number

    found = await asyncio.gather(*(wf.run(slow, number) for number in range(3)), wf.call("a"))
    try:
        async with asyncio.timeout(5):
            found.append(await wf.run(slow, 4))
    except TimeoutError:
        found.append("late")
    return found


WORKFLOWS["steps"] = steps, None


class Killed(BaseException):
    """The worker is gone."""


class Faulty:
    """The service as a worker meets it: answers are lost, pages short, and workers die before and after turns."""

    def __init__(self, run: MemoryRun, chance: random.Random, happens: Callable[[], None]) -> None:
        self.run, self.chance, self.happens = run, chance, happens

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        while wait_s and len(self.run) == after:
            await asyncio.sleep(0.001)
            self.happens()
        self.fail("history")
        return self.run.history(lease, after, self.chance.randint(1, 6))

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        if self.chance.random() < 0.3:
            self.happens()
        self.fail("before the turn")
        answer = self.run.turn(lease, turn)
        if self.chance.random() < 0.1:
            answer = self.run.turn(lease, turn)  # its answer was lost, and it was sent again
        self.fail("after the turn")
        cut = self.chance.randint(0, 8)
        return replace(answer, events=answer.events[:cut], more=len(answer.events) > cut)

    def fail(self, where: str) -> None:
        match self.chance.random():
            case drawn if drawn < 0.05:
                raise Killed(where)
            case drawn if drawn < 0.1:
                raise ConnectionFailed(where)


class World:
    def __init__(self, name: str, seed: int) -> None:
        self.chance = random.Random(f"{name}/{seed}")
        self.function, input = WORKFLOWS[name]
        self.run = MemoryRun("case", input)
        self.cancelled = False
        self.workers = [self.worker() for _ in range(2)]

    def worker(self) -> Driver:
        return Driver(
            {"case": self.function},
            Faulty(self.run, self.chance, self.happens),
            cores=Cores(self.chance.choice([1, 1_000_000])),
            threads=THREADS,
            replay_rate=self.chance.choice([0.0, 1.0]),
            commands_max=self.chance.randint(1, 4),
            part_bytes_max=self.chance.choice([1, 1_200, 1_000_000]),
            event_limit_s=30.0,
        )

    def happens(self) -> None:
        """Something ends, somebody says something."""
        run, chance = self.run, self.chance
        waiting = [key for key, node in run.nodes.items() if node["state"] == "added" and node["kind"] != "step"]
        if waiting and chance.random() < 0.8:
            key = chance.choice(waiting)
            if run.nodes[key]["kind"] != "timer" and chance.random() < 0.2:
                run.finish(key, chance.choice(["failed", "cancelled"]), error="at random")
            else:
                output = {"id": "report-1"} if run.nodes[key]["kind"] == "start" else chance.randrange(5)
                run.finish(key, output=output)
        elif chance.random() < 0.05 and not self.cancelled:
            self.cancelled = True
            run.cancel("at random")
        else:
            run.signal(chance.choice(["number", "other"]), chance.randrange(9), id=chance.choice([None, "same"]))

    async def deliver(self, worker: int) -> None:
        try:
            await self.workers[worker].work("case", self.run.lease)
        except Killed:
            self.workers[worker] = self.worker()
        except ConnectionFailed:
            pass  # the item is given back, and comes again

    async def play(self) -> None:
        run = self.run
        for _ in range(ROUNDS_MAX):
            if run.is_ended:
                return
            assert run.stuck is None, run.stuck
            if run.is_awake:
                workers = self.chance.choice([[0], [1], [0, 1]])
                await asyncio.gather(*map(self.deliver, workers))
                if self.chance.random() < 0.05:
                    run.lose_item()
            else:
                self.happens()
        raise AssertionError(f"the run does not end: {run.nodes}")


THREADS = CoreThreads()


@pytest.mark.parametrize("name", WORKFLOWS)
async def test_whatever_goes_wrong_each_command_is_written_once_and_the_code_agrees_with_the_log(
    name: str,
) -> None:
    ends = set()
    for seed in range(examples(15, nightly=100)):
        world = World(name, seed)
        try:
            await world.play()
            history = world.run.events()
            keys = [(event.kind, event.key, event.after if event.kind == "publish" else 0) for event in history]
            records = [key for key, event in zip(keys, history, strict=True) if event.is_record]
            assert len(records) == len(set(records))
            ended = [event.key for event in history if event.is_told and not event.is_record]
            assert len(ended) - ended.count("") == len(set(ended) - {""})
            replay(history, world.function, watched=False).close()
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error}") from error
        ends.add(world.run.state)
    assert ends
