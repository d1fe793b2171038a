"""Runs whose code goes on from an earlier event, or with other outputs."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import NodeFailed, Workflow
from headgate.testing import replay, simulate
from headgate.workflow.errors import HistoryChanged
from headgate.workflow.events import Event
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.replay import Replay
from headgate.workflow.turns import Turn
from tests.support.workflow_cases import CASES
from tests.support.workflow_service import Service, driver_of, to_the_end


async def two(wf: Workflow, _: Any = None) -> list[Any]:
    return [await wf.call("a"), await wf.call("b")]


def keys(run: MemoryRun, *, void: bool = False) -> list[str]:
    return [each.key for each in run.events() if each.is_record and each.key and (each.void is not None) is void]


async def ended(function: Callable[..., Any], run: MemoryRun) -> Service:
    service = Service(run)
    await to_the_end(service, driver_of(service, function))
    return service


async def test_after_a_reset_code_asks_anew_under_other_keys_and_facts_stay() -> None:
    run = MemoryRun("order")
    run.signal("go", 1)
    service = await ended(two, run)
    assert run.output == ["output of a#1", "output of b#1"]
    first_end = next(each.event for each in run.events() if each.key == "a#1" and each.is_told)
    run.reset(first_end)
    assert (run.state, run.is_awake) == ("running", True)
    await to_the_end(service, driver_of(service, two))
    assert run.output == ["output of a#1", "output of b#1~1"]
    assert keys(run) == ["a#1", "b#1~1"] and keys(run, void=True) == ["b#1"]
    run.reset(1)
    await to_the_end(service, driver_of(service, two))
    assert run.output == ["output of a#1~2", "output of b#1~2"]
    replay(run.events(), two)
    assert [each.state for each in run.events() if each.kind == "signal"] == ["received"]


async def test_a_core_that_was_told_of_what_is_void_is_made_anew() -> None:
    run = MemoryRun("order")
    service = Service(run)
    driver = driver_of(service, two)
    await driver.work("order", run.lease)
    run.finish("a#1", output=1)
    await driver.work("order", run.lease)
    kept = Replay(two)
    for event in run.events():
        kept.feed(event)
    run.reset(run.events()[2].event)
    with pytest.raises(HistoryChanged, match="reset to event 3"):
        for event in run.events(kept.last):
            kept.feed(event)
    service.read_from.clear()
    await driver.work("order", run.lease)
    assert service.read_from[:2] == [3, 0], "once with what was kept, then from the beginning"
    assert run.stuck is None and "b#1~1" in run.nodes
    await to_the_end(service, driver)


async def test_a_failed_run_goes_on_with_another_output() -> None:
    run = MemoryRun("order")
    service = Service(run)
    driver = driver_of(service, two)
    await driver.work("order", run.lease)
    run.finish("a#1", "failed", error="down")
    await driver.work("order", run.lease)
    assert run.state == "failed"
    run.replace({"a#1": "mended"})
    await to_the_end(service, driver)
    assert run.output == ["mended", "output of b#1~1"]
    [old] = [each for each in run.events() if each.key == "a#1" and each.state == "failed"]
    assert (old.error, old.void) == ("down", 1)
    replay(run.events(), two)


async def test_the_result_of_a_step_is_replaced_and_the_step_does_not_run_again() -> None:
    calls: list[int] = []

    async def step(wf: Workflow, _: Any = None) -> Any:
        found = await wf.run(lambda: calls.append(1) or 7, name="look")
        if found == 7:
            raise ValueError("that cannot be")
        return found

    run = MemoryRun("order")
    service = Service(run)
    driver = driver_of(service, step)
    await driver.work("order", run.lease)
    assert (run.state, calls) == ("failed", [1])
    run.replace({"step:look#1": 8})
    await driver.work("order", run.lease)
    assert (run.state, run.output, calls) == ("succeeded", 8, [1])
    replay(run.events(), step)


async def test_a_patch_that_was_taken_after_the_point_is_decided_anew() -> None:
    async def patched(wf: Workflow, _: Any = None) -> list[Any]:
        found = [await wf.call("a")]
        return [*found, wf.patched("new"), await wf.call("b")]

    run = MemoryRun("order")
    service = await ended(patched, run)
    assert run.markers == {"new": 3}
    run.reset(3)
    assert run.markers == {}
    await to_the_end(service, driver_of(service, patched))
    assert run.markers == {"new": 3} and run.output[1] is True
    replay(run.events(), patched)


async def test_a_cancel_that_came_after_the_point_is_void() -> None:
    run = MemoryRun("order")
    service = Service(run)
    driver = driver_of(service, two)
    await driver.work("order", run.lease)
    run.finish("a#1", output=1)
    run.cancel("enough")
    await driver.work("order", run.lease)
    assert run.state == "cancelled"
    run.reset(3)
    await to_the_end(service, driver)
    assert (run.state, run.output) == ("succeeded", [1, "output of b#1~1"])


@pytest.mark.parametrize("name", CASES)
async def test_any_case_may_be_reset_at_any_event_again_and_again_and_replays(name: str) -> None:
    case = CASES[name]
    played = case().run()
    chance = random.Random(name)
    run = played.run
    for _ in range(6):
        told = [each.event for each in run.events() if each.is_told and each.void is None]
        run.reset(chance.choice(told))
        # A worker that writes what the code asks for now, and dies; tasks do not end.
        core = Replay(case().function, seen=run.seen, markers=run.markers)
        for event in run.events():
            core.feed(event)
        core.check()
        asked = core.unrecorded()
        core.close()
        lease = run.lease
        run.turn(
            lease,
            Turn(
                lease.generation,
                lease.secret,
                run.turn_number + 1,
                core.last,
                core.told,
                [each.body() for each in asked],
            ),
        )
        again = Replay(case().function, seen=run.seen, markers=run.markers)
        for event in run.events():
            again.feed(event)
        again.check()
        assert again.unrecorded() == []
        again.close()


def test_an_event_of_which_code_is_not_told_is_no_point_to_go_back_to() -> None:
    run = simulate(two).run().run
    for event in (0, 2, 99):
        with pytest.raises(ValueError, match="no event"):
            run.reset(event)


async def test_code_looks_at_what_it_has_asked_for() -> None:
    async def looks(wf: Workflow, _: Any = None) -> list[Any]:
        seen = [{key: node.state for key, node in wf.nodes.items()}]
        tasks = [asyncio.ensure_future(wf.call("a", n)) for n in range(2)]
        timer = asyncio.ensure_future(asyncio.sleep(60))
        await tasks[0]
        seen.append({key: node.state for key, node in wf.nodes.items()})
        timer.cancel()
        try:
            await tasks[1]
        except NodeFailed:
            seen.append({f"{node.kind} {key}": node.ended for key, node in wf.nodes.items()})
        return seen

    def a(payload: int) -> int:
        if payload:
            raise ValueError("no")
        return 1

    done = simulate(looks, None).on("a", a, takes_s=1)
    assert done.output[0] == {}
    assert done.output[1] == {"a#1": "succeeded", "a#2": "added", "timer#1": "added"}
    assert done.output[2] == {"item a#1": True, "item a#2": True, "timer timer#1": True}


def test_an_event_says_whether_it_is_void() -> None:
    body = {"event": 3, "at": "2030-01-01T00:00:00+00:00", "kind": "item", "key": "a#1", "void": 2, "reset": 1}
    assert (Event.parse(body).void, Event.parse(body).reset) == (2, 1)
    assert Event.parse(Event.parse(body).body()) == Event.parse(body)


async def test_in_memory_too_a_retry_is_told_when_it_ends_and_not_before() -> None:
    async def tries(wf: Workflow, _: Any = None) -> Any:
        try:
            return await wf.call("a")
        except NodeFailed:
            await wf.call("tell")
            raise

    run = MemoryRun("order")
    service = Service(run)
    driver = driver_of(service, tries)
    await driver.work("order", run.lease)
    run.finish("a#1", "failed", error="no")
    await driver.work("order", run.lease)
    run.finish("tell#1", output=None)
    await driver.work("order", run.lease)
    assert run.state == "failed"
    run.replace({}, retry=["a#1"])
    await driver.work("order", run.lease)
    assert (run.state, keys(run, void=True)) == ("running", ["tell#1"])
    run.finish("a#1", "failed", error="no, again")
    await driver.work("order", run.lease)
    assert keys(run) == ["a#1", "tell#1~1"]
    run.finish("tell#1~1", output=None)
    await driver.work("order", run.lease)
    run.replace({}, retry=["a#1"])
    await driver.work("order", run.lease)
    run.finish("a#1", output="at last")
    await driver.work("order", run.lease)
    assert (run.state, run.output) == ("succeeded", "at last")
    replay(run.events(), tries)
