"""Runs whose code goes on from an earlier event, or with other outputs; the log keeps what holds no more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Conflict, Invalid, NodeFailed, NotFound, Workflow
from headgate.testing import replay
from headgate.wire.workflow import WorkflowRun
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import TurnLost
from services.dag.workflows import rewriting
from shared.errors import ShardUnavailable
from tests.integration.dag.test_bad_runs import dump
from tests.integration.dag.test_runs import item, leased, turn
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns, drive


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    yield made
    await made.close()


async def reset(runs: DagRuns, event: int, **more: Any) -> WorkflowRun:
    run = await runs.client.workflows.get(runs.id).reset(event, **more)
    await runs.world.settle()
    return run


async def resume(runs: DagRuns, **ends: Any) -> WorkflowRun:
    run = await runs.client.workflows.get(runs.id).resume("mended", **ends)
    await runs.world.settle()
    return run


async def two(wf: Workflow) -> list[Any]:
    return [await wf.call("a"), await wf.call("b")]


async def told(runs: DagRuns, key: str) -> int:
    return next(
        each.event for each in await runs.events() if each.key == key and each.is_told and each.void is None
    )


async def live(runs: DagRuns) -> list[tuple[str, str]]:
    return [(each.key or each.kind, each.state) for each in await runs.events() if each.void is None]


async def test_a_run_goes_on_from_an_earlier_event_under_other_keys_and_what_ran_is_cancelled(
    runs: DagRuns,
) -> None:
    driver = Driver({TYPE: two}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1", output=1)
    await drive(runs, driver)
    await runs.signal("go", 1)
    running = runs.world.queue.item_of("b#1")
    shown = await reset(runs, await told(runs, "a#1"), reason="other code")
    assert (shown.state, shown.resets) == ("running", 1)
    assert runs.world.queue.ended[running.body["id"]] == "cancelled"
    assert ("b#1", "cancelled") not in await live(runs), "code is not told of the end of what it did not ask for"
    await drive(runs, driver)
    await runs.finish("b#1~1", output=2)
    await drive(runs, driver)
    assert (await runs.shown())["output"] == [1, 2]
    events = await runs.events()
    assert [each.key for each in events if each.kind == "signal" and each.void is None] == ["signal:go#1"]
    assert {each.key for each in events if each.void == 1} == {"b#1"}
    [said] = [each for each in events if each.state == "reset"]
    assert said.data == {"reset": 1, "event": await told(runs, "a#1"), "reason": "other code"}
    replay(events, two)


@pytest.mark.parametrize("how", ["succeeded", "failed", "terminated", "cancelled"])
async def test_a_run_that_is_over_goes_on_from_its_beginning(runs: DagRuns, how: str) -> None:
    async def code(wf: Workflow) -> Any:
        found = await wf.call("a")
        if found == "bad":
            raise ValueError("bad")
        return found

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    handle = runs.client.workflows.get(runs.id)
    if how == "terminated":
        await handle.terminate("enough")
        await runs.world.settle()
    elif how == "cancelled":
        await runs.cancel("enough")
        await drive(runs, driver)
    else:
        await runs.finish("a#1", output="bad" if how == "failed" else "good")
        await drive(runs, driver)
    assert (await runs.shown())["state"] == ("cancelled" if how == "terminated" else how)
    await runs.world.settle()
    assert (await reset(runs, 1)).state == "running"
    await drive(runs, driver)
    await runs.finish("a#1~1", output="again")
    await drive(runs, driver)
    assert (await runs.shown())["output"] == "again"
    replay(await runs.events(), code)


async def test_the_same_reset_again_changes_nothing(runs: DagRuns) -> None:
    driver = Driver({TYPE: two}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await reset(runs, 1, id="r-1")
    await drive(runs, driver)
    before = await dump(runs.world)
    assert (await reset(runs, 1, id="r-1")).resets == 1
    assert await dump(runs.world) == before
    assert (await reset(runs, 1, id="r-2")).resets == 2


async def test_whoever_has_a_run_that_is_reset_loses_it(runs: DagRuns) -> None:
    await runs.start()
    old = await leased(runs)
    await reset(runs, 1)
    with pytest.raises(TurnLost):
        await runs.turn(old, turn(old, 1, 1, 1, item(1)))
    new = await leased(runs)
    assert (await runs.turn(new, turn(new, 1, 2, 1, item(1)))).parked


async def test_a_paused_run_that_is_reset_goes_on_when_it_is_resumed(runs: DagRuns) -> None:
    driver = Driver({TYPE: two}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.client.workflows.get(runs.id).pause()
    await reset(runs, 1)
    assert await runs.lease() is None
    await runs.resume()
    await drive(runs, driver)
    assert ("a#1~1", "added") in await live(runs)


async def test_what_code_showed_marked_and_was_asked_to_do_after_the_point_is_void(runs: DagRuns) -> None:
    async def code(wf: Workflow) -> str:
        wf.publish("first", 1)
        await wf.call("a")
        wf.publish("state", "asked")
        wf.patched("new")
        timer = asyncio.ensure_future(wf.sleep(3_600))
        await wf.call("b")
        timer.cancel()
        return "done"

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1")
    await drive(runs, driver)
    await runs.cancel("enough")
    assert (await runs.shown())["published"] == {"first": 1, "state": "asked"}
    await reset(runs, await told(runs, "a#1"))
    assert (await runs.shown())["published"] == {"first": 1}
    assert await runs.world.rows("SELECT FROM timer") == []
    [row] = await runs.world.rows("SELECT markers, cancel_requested, open_steps FROM run")
    assert (row["markers"], row["cancel_requested"]) == ("{}", False)
    await drive(runs, driver)
    await runs.finish("b#1~1")
    await drive(runs, driver)
    assert (await runs.shown())["output"] == "done"
    replay(await runs.events(), code)


async def test_a_failed_run_goes_on_with_another_output_and_the_log_keeps_the_old_one(runs: DagRuns) -> None:
    async def code(wf: Workflow) -> Any:
        return [await wf.call("a", max_attempts=1), await wf.call("b")]

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1", "failed")
    await drive(runs, driver)
    assert (await runs.shown())["state"] == "failed"
    await runs.world.settle()
    shown = await resume(runs, outputs={"a#1": {"by": "hand"}})
    assert (shown.state, shown.resets) == ("running", 1)
    before = await dump(runs.world)
    await resume(runs, outputs={"a#1": {"by": "hand"}})
    assert await dump(runs.world) == before, "the same again changes nothing"
    await drive(runs, driver)
    await runs.finish("b#1~1", output=2)
    await drive(runs, driver)
    assert (await runs.shown())["output"] == [{"by": "hand"}, 2]
    events = await runs.events()
    assert [(each.state, each.void) for each in events if each.key == "a#1" and not each.is_record] == [
        ("failed", 1),
        ("succeeded", None),
    ]
    [said] = [each.data for each in events if each.state == "reset"]
    assert (said["replaced"], said["reason"]) == (["a#1"], "mended")
    replay(events, code)


async def until_failed(runs: DagRuns) -> None:
    """A run whose a has succeeded and whose b has failed, with a timer beside."""

    async def fails(wf: Workflow) -> None:
        wf.shield(wf.sleep(3_600))
        await wf.call("a")
        await wf.call("b")

    driver = Driver({TYPE: fails}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1")
    await drive(runs, driver)
    await runs.finish("b#1", "failed")
    await drive(runs, driver)
    await runs.world.settle()


async def test_what_was_cancelled_with_a_failed_run_may_be_given_an_output(runs: DagRuns) -> None:
    async def code(wf: Workflow) -> list[Any]:
        return await asyncio.gather(wf.call("a"), wf.call("b"))

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.finish("a#1", "failed")
    await drive(runs, driver)
    await runs.world.settle()
    await resume(runs, outputs={"a#1": 1, "b#1": 2})
    await drive(runs, driver)
    assert (await runs.shown())["output"] == [1, 2]
    replay(await runs.events(), code)


async def test_a_stuck_run_goes_on_with_another_result_of_a_step(runs: DagRuns) -> None:
    calls: list[int] = []

    async def code(wf: Workflow) -> Any:
        found = await wf.run(lambda: calls.append(1) or "odd", name="look")
        if found == "odd":
            await asyncio.wait_for(wf.call("b"), 1)
        return found

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive_until_stuck(runs, driver)
    assert (await runs.shown())["stuck"] is not None and calls == [1]
    await resume(runs, outputs={"step:look#1": "even"})
    await drive(runs, driver)
    shown = await runs.shown()
    assert (shown["output"], shown["stuck"], calls) == ("even", None, [1])
    assert [(each.state, each.void) for each in await runs.events() if each.key == "step:look#1"] == [
        ("added", None),
        ("succeeded", 1),
        ("succeeded", None),
    ]
    replay(await runs.events(), code)


async def drive_until_stuck(runs: DagRuns, driver: Driver) -> None:
    lease = await leased(runs)
    await driver.work(TYPE, lease)
    await runs.acked(lease)


@pytest.mark.parametrize(
    ("outputs", "status", "code"),
    [
        ({"nothing#1": 1}, 422, "unknown_node"),
        ({"decider": 1}, 422, "unknown_node"),
        ({"timer#1": 1}, 409, "not_replaceable"),
        ({"b#1": 1, "a#1": 1}, 409, "not_replaceable"),
        ({"a#1": "x" * 65_537}, 413, "too_large"),
        ({f"a#{n}": 1 for n in range(101)}, 422, "invalid"),
        ({"a\n#1": 1}, 422, "invalid"),
    ],
)
async def test_bad_outputs_change_nothing(runs: DagRuns, outputs: Any, status: int, code: str) -> None:
    await until_failed(runs)
    before = await dump(runs.world)
    answer = await runs.world.http.post(
        f"/v1/namespaces/default/workflows/{runs.id}/resume", json={"outputs": outputs}
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert await dump(runs.world) == before


async def test_outputs_of_a_run_that_goes_on_or_of_what_has_not_ended_are_not_replaced(runs: DagRuns) -> None:
    driver = Driver({TYPE: two}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    before = await dump(runs.world)
    with pytest.raises(Conflict, match="failed or is stuck"):
        await resume(runs, outputs={"a#1": 1})
    assert await dump(runs.world) == before
    await runs.finish("a#1")
    lease = await leased(runs)
    await runs.turn(lease, turn(lease, 2, 0, 0, stuck={"code": "mismatch", "error": "no"}))
    other = await leased(runs)
    assert other.generation > lease.generation
    with pytest.raises(Invalid, match="nothing under the key"):
        await resume(runs, outputs={"b#1": 1})
    await runs.client.workflows.get(runs.id).terminate()
    await runs.world.settle()
    with pytest.raises(Conflict, match="has ended"):
        await resume(runs, outputs={"a#1": 1})


async def test_a_task_of_a_stuck_run_that_has_not_ended_keeps_its_output(runs: DagRuns) -> None:
    await runs.start()
    lease = await leased(runs)
    await runs.turn(lease, turn(lease, 1, 1, 1, item(1), item(2)))
    await runs.acked(lease)
    await runs.finish("pack#1", output=1)
    lease = await leased(runs)
    await runs.turn(lease, turn(lease, 2, 0, 0, stuck={"code": "mismatch", "error": "no"}))
    with pytest.raises(Conflict, match="has not ended"):
        await resume(runs, outputs={"pack#2": 1})
    assert (await resume(runs, outputs={"pack#1": 2})).stuck is None


@pytest.mark.parametrize("event", [0, 2, 99, 2**60, -1, "1", None])
async def test_an_event_that_code_is_not_told_of_is_no_point_to_go_back_to(runs: DagRuns, event: Any) -> None:
    driver = Driver({TYPE: two}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    before = await dump(runs.world)
    answer = await runs.world.http.post(f"/v1/namespaces/default/workflows/{runs.id}/reset", json={"event": event})
    assert answer.status_code == 422, answer.text
    assert await dump(runs.world) == before
    with pytest.raises(NotFound):
        await runs.client.workflows.get("nobody").reset(1)
    with pytest.raises(NotFound):
        await runs.client.workflows.get(runs.id, namespace="stranger").reset(1)


async def test_so_much_is_not_asked_for_anew_at_once(runs: DagRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "VOID_MAX", 1)
    await runs.start()
    lease = await leased(runs)
    await runs.turn(lease, turn(lease, 1, 1, 1, item(1), item(2)))
    await runs.acked(lease)
    before = await dump(runs.world)
    with pytest.raises(Invalid, match="go back less far"):
        await reset(runs, 1)
    assert await dump(runs.world) == before


async def test_a_child_with_an_id_begins_again_when_the_one_before_is_over(runs: DagRuns) -> None:
    async def parent(wf: Workflow) -> Any:
        return await wf.child("small", 1, id="the-child", parent_close="terminate")

    driver = Driver({TYPE: parent}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    first = await runs.client.workflows.get("the-child").show()
    await reset(runs, 1)
    await drive(runs, driver)
    second = await runs.client.workflows.get("the-child").show()
    assert (first.state, second.state) == ("running", "running") and first.run != second.run
    assert ("child:small#1~1", "added") in await live(runs)


async def until_child_failed(runs: DagRuns) -> Driver:
    """A run that has failed with its child, which was terminated."""

    async def parent(wf: Workflow) -> Any:
        return await wf.child("small", 1, id="the-child")

    driver = Driver({TYPE: parent}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.client.workflows.get("the-child").terminate("it hangs")
    await runs.world.settle()
    await drive(runs, driver)
    await runs.world.settle()
    assert (await runs.shown())["state"] == "failed"
    return driver


async def test_a_child_that_failed_is_given_an_output(runs: DagRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the queue is away, of which nothing is asked."""
    driver = await until_child_failed(runs)

    async def away(*_: Any) -> Any:
        raise ShardUnavailable("the queue is away")

    with monkeypatch.context() as patched:
        patched.setattr(runs.world.duties.context, "queue_shard", away)
        await resume(runs, outputs={"child:small#1": "by hand"})
    await drive(runs, driver)
    assert (await runs.shown())["output"] == "by hand"


async def test_code_that_catches_a_cancelled_call_is_told_of_it_again(runs: DagRuns) -> None:
    """What was cancelled stays so: a reset does not bring back what was asked for before it."""

    async def code(wf: Workflow) -> str:
        task = asyncio.ensure_future(wf.call("a"))
        await wf.receive("go")
        task.cancel()
        await wf.receive("on")
        try:
            await task
        except (asyncio.CancelledError, NodeFailed) as error:
            return type(error).__name__
        return "not cancelled"

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start()
    await drive(runs, driver)
    await runs.signal("go", 1)
    await drive(runs, driver)
    go = await told(runs, "signal:go#1")
    await reset(runs, go)
    await drive(runs, driver)
    await runs.signal("on", 1, id="s2")
    await drive(runs, driver)
    assert (await runs.shown())["output"] in ("CancelledError", "NodeFailed")
    replay(await runs.events(), code)
