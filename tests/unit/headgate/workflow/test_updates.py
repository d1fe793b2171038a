"""Updates: what a handler answers, in which order, and that it is a function of the history."""

import asyncio
import time
from typing import Any

import pytest

from headgate.testing import explore, replay, simulate
from headgate.workflow import Mismatch, NodeFailed, Nondeterministic, Workflow


def at_most_ten(count: int) -> None:
    if count > 10:
        raise ValueError("no more than 10")


async def cart(wf: Workflow, _input: Any) -> list[int]:
    counts: list[int] = []

    async def add(count: int) -> int:
        if count < 0:
            raise KeyError(count)
        if count > 1:
            await wf.call("stock", count)
        counts.append(count)
        return len(counts)

    wf.on_update("add", add, validator=at_most_ten)
    await wf.receive("order")
    await wf.updates_done()
    return counts


def played() -> Any:
    simulation = simulate(cart, None).on("stock", takes_s=5)
    for number, count in enumerate([1, 2, 11, -1, 3]):
        simulation.update("add", count, id=f"u{number}", at_s=number)
    return simulation.signal("order", at_s=6)


def test_what_a_handler_returns_or_raises_is_its_answer_and_a_rejected_update_is_not_handled() -> None:
    done = played()
    assert done.output == [1, 2, 3], "the run has waited for what was being handled"
    answers = done.answers
    assert answers["u0"] == {"state": "done", "output": 1}
    assert answers["u1"] == {"state": "done", "output": 2} and answers["u4"] == {"state": "done", "output": 3}
    assert answers["u2"] == {"state": "rejected", "error": "no more than 10"}
    assert answers["u3"]["state"] == "failed" and "KeyError: -1" in answers["u3"]["error"]
    replay(done.history, cart)
    explored = explore(done, seeds=60)
    assert len(explored.ends) > 1 and not any("failed" in end for end in explored.ends)
    for history in explored.histories:
        replay(history, cart)


def test_updates_that_came_before_their_handler_are_handled_in_their_order() -> None:
    async def late(wf: Workflow) -> list[str]:
        found: list[str] = []
        await wf.sleep(10)
        wf.on_update("say", found.append)
        await wf.updates_done()
        with pytest.raises(ValueError, match="a handler already"):
            wf.on_update("say", found.append)
        return found

    done = simulate(late).update("say", "one", id="1").signal("say", "two").update("say", "three", id="3", at_s=1)
    assert done.output == ["one", "two", "three"]
    assert done.answers == {"1": {"state": "done"}, "3": {"state": "done"}}


def test_an_update_that_is_received_is_answered_with_nothing_and_one_at_the_end_not_at_all() -> None:
    async def receives(wf: Workflow) -> Any:
        return await wf.receive("go")

    done = simulate(receives).update("go", 1, id="first").update("go", 2, id="second", at_s=0)
    assert done.output == 1
    assert done.answers["first"] == {"state": "done"}
    assert done.answers.get("second") is None


def test_a_handler_that_does_what_a_workflow_may_not_leaves_the_run_stuck() -> None:
    async def clock(wf: Workflow) -> None:
        wf.on_update("when", lambda _data: time.time())
        await wf.receive("go")

    async def own(wf: Workflow) -> None:
        wf.on_update("go", print)
        await wf.receive("go")

    with pytest.raises(Nondeterministic, match="clock"):
        simulate(clock).update("when", id="1").run()
    with pytest.raises(Nondeterministic, match="on_update"):
        simulate(own).run()


def test_another_answer_is_a_mismatch_at_its_event() -> None:
    done = played()

    async def other(wf: Workflow, _input: Any) -> None:
        wf.on_update("add", lambda _count: "other", validator=at_most_ten)
        await wf.receive("order")

    with pytest.raises(Mismatch) as caught:
        replay(done.history, other)
    assert "answer signal:add#1" in str(caught.value) and '"output":1' in (caught.value.expected or "")


def test_a_handler_is_cancelled_with_what_it_awaits_when_its_run_ends() -> None:
    async def ends(wf: Workflow) -> str:
        async def slow(_data: Any) -> None:
            try:
                await wf.call("slow")
            except NodeFailed:
                pytest.fail("the run has ended")

        wf.on_update("slow", slow)
        async with asyncio.timeout(5):
            await wf.receive("go")
        return "ended"

    done = simulate(ends).on("slow", takes_s=60).update("slow", id="1").signal("go", at_s=1)
    assert (done.output, done.answers) == ("ended", {"1": None})
    assert [event.state for event in done.history if event.key == "slow#1"] == ["added", "cancelled"]


class Panic(BaseException):
    """As an extension in Rust raises it."""


class Unlooked(Exception):
    def __str__(self) -> str:
        raise Panic("as it is looked at")


ENDS = [Panic("a panic"), SystemExit(3), GeneratorExit("closed"), asyncio.CancelledError("by itself"), Unlooked()]


@pytest.mark.parametrize("part", ["function", "coroutine", "validator"])
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_whatever_a_handler_or_a_validator_raises_is_an_answer(error: BaseException, part: str) -> None:
    """Nobody answered, and its sender waited until the run ended."""

    async def ends(wf: Workflow) -> str:
        def function(_data: Any) -> None:
            raise error

        async def coroutine(data: Any) -> None:
            function(data)

        if part == "validator":
            wf.on_update("go", lambda _data: "handled", validator=function)
        else:
            wf.on_update("go", function if part == "function" else coroutine)
        return str(await wf.receive("end"))

    done = simulate(ends).update("go", id="1").signal("end", "ended", at_s=1)
    assert done.output == "ended"
    answer = done.answers["1"]
    assert answer["state"] == ("rejected" if part == "validator" else "failed")
    assert (type(error).__name__ if part != "validator" else answer["error"]) in answer["error"]
    replay(done.history, ends)
