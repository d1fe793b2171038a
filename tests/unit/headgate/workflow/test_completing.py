"""Calls in the order of their ends: `wf.as_completed`."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate.testing import explore, simulate
from headgate.workflow import NodeFailed, Nondeterministic, Workflow


async def ends_in_order(wf: Workflow) -> list[Any]:
    found = []
    async for task in wf.as_completed(wf.call("work", number) for number in range(5)):
        assert task.done()
        found.append(await task)
    return found


async def ends_in_order_awaited(wf: Workflow) -> list[Any]:
    return [await each for each in wf.as_completed([wf.call("work", number) for number in range(5)])]


async def first_of_each(wf: Workflow) -> list[Any]:
    """What is left of a loop goes on, and one call given twice is one."""
    task = asyncio.create_task(wf.call("work", 0))
    for each in wf.as_completed([task, task, asyncio.create_task(wf.call("work", 1))]):
        first = await each
        break
    async with asyncio.timeout(60):
        async for found in wf.as_completed([task]):
            await found
    return [first, task.result()]


@pytest.mark.parametrize("workflow", [ends_in_order, ends_in_order_awaited])
def test_ends_come_in_their_order_and_replay(workflow: Callable[..., Any]) -> None:
    played = simulate(workflow).on("work", lambda number: number)
    assert played.output == [0, 1, 2, 3, 4]
    found = explore(played, seeds=50)
    assert len(found.outputs) > 10
    assert all(sorted(output) == list(range(5)) for output in found.outputs)


def test_of_ends_in_their_order_the_loop_may_be_left() -> None:
    found = explore(simulate(first_of_each).on("work", lambda number: number), seeds=50)
    assert sorted(found.outputs) == [[0, 0], [1, 0]]


async def fails_second(wf: Workflow) -> list[str]:
    found = []
    async for task in wf.as_completed([wf.call("good"), wf.call("bad", max_attempts=1)]):
        try:
            found.append(await task)
        except NodeFailed as error:
            found.append(error.key)
    return found


def test_what_failed_raises_where_its_task_is_awaited() -> None:
    played = simulate(fails_second).on("good", "good", takes_s=1).on("bad", fails=1, takes_s=2)
    assert played.output == ["good", "bad#1"]


async def ends_of_a_set(wf: Workflow) -> None:
    async for _ in wf.as_completed({wf.call("a"), wf.call("b")}):
        pass


def test_ends_of_a_set_of_calls_are_refused() -> None:
    with pytest.raises(Nondeterministic, match="give it a list"):
        simulate(ends_of_a_set).unguarded().run()
