"""Workflows that use everything asyncio and `wf` have, each with a simulation; run as a program, it prints what
each of them asks for, so that other interpreters and hash seeds can be compared. It imports nothing but the core.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from headgate.workflow import NodeFailed, Nondeterministic, Workflow
from headgate.workflow.local.simulation import Simulation, explore, simulate


class Graph:
    """A graph as `headgate.Dag` gives it to a workflow."""

    def __init__(self, name: str, *nodes: dict[str, Any]) -> None:
        self.name = name
        self.nodes = list(nodes)

    def within(self) -> dict[str, Any]:
        return {"name": self.name, "nodes": self.nodes}


async def chain(wf: Workflow, count: int) -> int:
    total = 0
    for number in range(count):
        total += await wf.call("add", number)
    return total


async def gathered(wf: Workflow, topics: list[str]) -> list[Any]:
    first = await asyncio.gather(*(wf.call(topic, number) for number, topic in enumerate(topics)))
    second = await asyncio.gather(*map(wf.call, topics), return_exceptions=True)
    return [first, [str(each) for each in second]]


async def raced(wf: Workflow) -> list[str]:
    """What `wait` answers are sets, and code goes through them."""
    pending = {asyncio.create_task(wf.call("work", number), name=f"w{number}") for number in range(9)}
    order = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=50)
        for task in done:
            order.append(await wf.call("note", task.get_name()))
        if not done:
            for task in pending:
                await wf.call("late", task.get_name())
                task.cancel()
            break
    return order


async def group_aborted(wf: Workflow) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(7):
                group.create_task(undone(wf, number))
            group.create_task(wf.call("breaks"))
    except BaseExceptionGroup as failures:
        assert all(isinstance(failure, NodeFailed) for failure in failures.exceptions)
        return await wf.call("sum up", len(failures.exceptions))
    return "not broken"


async def undone(wf: Workflow, number: int) -> None:
    try:
        await wf.call("work", number)
    except asyncio.CancelledError:
        await asyncio.shield(wf.call("undo", number))
        raise


async def nested_timeouts(wf: Workflow) -> list[str]:
    seen = []
    for inner_s, outer_s in ((5, 10), (10, 5), (5, 5), (30, 40)):
        try:
            async with asyncio.timeout(outer_s):
                try:
                    async with asyncio.timeout(inner_s):
                        seen.append(await wf.call("slow", [inner_s, outer_s]))
                except TimeoutError:
                    seen.append("inner")
                    await wf.call("slow", "within the outer")
        except TimeoutError:
            seen.append("outer")
        await wf.call("note", str(wf.now()))
    return seen


async def shielded(wf: Workflow) -> str:
    paid = asyncio.create_task(wf.call("pay"))
    try:
        async with asyncio.timeout(10):
            await wf.shield(paid)
    except TimeoutError:
        await wf.call("remind")
    return str(await paid)


async def swallowed(wf: Workflow) -> str:
    """A cancel that the code does not follow; it comes once."""
    try:
        await wf.call("work")
    except asyncio.CancelledError:
        await wf.sleep(30)
        await wf.call("clean up")
    return "went on"


async def cleaned_up(wf: Workflow) -> None:
    try:
        await wf.call("work")
    finally:
        await wf.call("clean up")
        wf.publish("state", "cleaned")


async def asked_for(wf: Workflow) -> list[Any]:
    """The primitives of the original: fork, join, and a question whose answer stays."""
    first, second = await wf.fork("work", "xyzzy"), await wf.fork("work", "plugh")
    answers = []
    while not (wf.is_task_finished(first) and wf.is_task_finished(second)):
        answers.append([wf.is_task_finished(first), wf.is_task_finished(second)])
        await wf.sleep(1)
    answers.append([wf.is_task_finished(first), wf.is_task_finished(second)])
    return [answers, await wf.join(first), await wf.join(second)]


async def signalled(wf: Workflow) -> list[Any]:
    found = [await wf.receive("number") for _ in range(2)]
    try:
        async with asyncio.timeout(100):
            found += await asyncio.gather(wf.receive("number"), wf.receive("other"), wf.receive("number"))
    except TimeoutError:
        found.append("no more")
    wf.publish("found", found)
    return found


async def everything(wf: Workflow, name: str) -> dict[str, Any]:
    drawn = [wf.random.randint(1, 100), wf.random(), str(wf.uuid())]
    step = await wf.run(len, name, name="length")
    begun = wf.now()
    await wf.until(begun + timedelta(days=40))
    graph = Graph("pack", {"key": "a", "topic": "box"}, {"key": "b", "topic": "label", "upstream": ["a"]})
    packed, child = await asyncio.gather(wf.dag(graph), wf.child("nested", 3, id="child-1"))
    await wf.signal("other", "hello", [name])
    started = await wf.start("report", {"of": name}, id="report-1")
    path = "new" if wf.patched("other way") else "old"
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    maker = asyncio.create_task(fill(wf, queue))
    taken = [await queue.get() for _ in range(3)]
    await maker
    return {
        "drawn": drawn,
        "step": step,
        "took": (wf.now() - begun).days,
        "packed": packed,
        "child": child,
        "started": started["id"],
        "path": path,
        "taken": taken,
    }


async def fill(wf: Workflow, queue: "asyncio.Queue[int]") -> None:
    for number in range(3):
        await queue.put(await wf.call("add", number))


async def failing(wf: Workflow) -> None:
    await wf.call("work")
    raise ValueError("as it must be")


async def continued(wf: Workflow, round: int) -> None:
    await wf.call("work", round)
    wf.continue_as_new(round + 1)


CASES: dict[str, Callable[[], Simulation]] = {
    "chain": lambda: simulate(chain, 20).on("add", lambda number: number),
    "gathered": lambda: (
        simulate(gathered, ["a", "b", "c"])
        .on("a", 1, takes_s=3)
        .on("b", lambda payload: payload or 1 / 0, takes_s=2)
        .on("c", 3, fails=2, takes_s=1)
    ),
    "raced": lambda: simulate(raced).on("work", lambda number: number, takes_s=20).on("note", lambda name: name),
    "late": lambda: simulate(raced).on("work", takes_s=70),
    "group_aborted": lambda: (
        simulate(group_aborted).on("work", takes_s=9).on("breaks", fails=99).on("undo", takes_s=2)
    ),
    "nested_timeouts": lambda: simulate(nested_timeouts).on("slow", "done", takes_s=20),
    "shielded": lambda: simulate(shielded).on("pay", "paid", takes_s=60),
    "swallowed": lambda: (
        simulate(swallowed).on("work", takes_s=60).cancel("enough", at_s=5).cancel("again", at_s=20)
    ),
    "cleaned_up": lambda: simulate(cleaned_up).on("work", takes_s=60).cancel(at_s=5),
    "asked_for": lambda: simulate(asked_for).on("work", lambda word: word, takes_s=3, fails=1),
    "signalled": lambda: (
        simulate(signalled)
        .signal("number", 1)
        .signal("number", 2, at_s=5)
        .signal("number", 3, at_s=6)
        .signal("other", "o", at_s=7)
    ),
    "everything": lambda: (
        simulate(everything, "ada").on("nested", workflow=chain).on("add", lambda number: number)
    ),
    "failing": lambda: simulate(failing),
    "continued": lambda: simulate(continued, 1),
}


async def as_completed_of_coroutines(wf: Workflow) -> None:
    for each in asyncio.as_completed([wf.call("a")]):
        await each


async def wait_for_a_call(wf: Workflow) -> None:
    await asyncio.wait_for(wf.call("a"), 5)


async def wait_for_a_task(wf: Workflow) -> None:
    await asyncio.wait_for(asyncio.create_task(wf.call("a")), 5)


async def wait_for_gathered(wf: Workflow) -> None:
    await asyncio.wait([asyncio.gather(wf.call("a")), asyncio.gather(wf.call("b"))])


async def use_a_thread(wf: Workflow) -> None:
    await asyncio.to_thread(len, "a")


async def use_a_socket(wf: Workflow) -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def read_the_clock(wf: Workflow) -> None:
    await wf.call("a", time.time())


async def draw_a_uuid(wf: Workflow) -> None:
    await wf.call("a", str(uuid.uuid4()))


REFUSED = (
    as_completed_of_coroutines,
    wait_for_a_call,
    wait_for_a_task,
    wait_for_gathered,
    use_a_thread,
    use_a_socket,
    read_the_clock,
    draw_a_uuid,
)


def refused() -> dict[str, str]:
    """What each of those is told."""
    found: dict[str, str] = {}
    for workflow in REFUSED:
        try:
            found[workflow.__name__] = str(simulate(workflow).run().outcome)
        except Nondeterministic as error:
            found[workflow.__name__] = f"refused: {error}"
    return found


def asked() -> dict[str, Any]:
    """What each case asks for, at which event, in its own order and in some others."""
    found: dict[str, Any] = {"refused": refused()}
    for name, made in CASES.items():
        simulation = made()
        histories = [simulation.history, *explore(simulation, seeds=3, first_seed=7).histories]
        found[name] = [
            [(event.after, event.kind, event.key, event.fingerprint) for event in history if event.is_record]
            for history in histories
        ]
    return found


def histories() -> dict[str, Any]:
    """A history of each case, to be kept: code that is not changed replays it for ever."""
    return {name: [event.body() for event in made().history] for name, made in CASES.items()}


if __name__ == "__main__":
    if sys.argv[1:] == ["histories"]:
        lines = [f"{json.dumps(name)}: {json.dumps(events)}" for name, events in histories().items()]
        print("{" + ",\n".join(lines) + "}")
    else:
        print(json.dumps(asked()))
