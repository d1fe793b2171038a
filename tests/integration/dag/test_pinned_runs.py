"""Runs of a version of the code: whose workers have them, and how they come to those of another."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Conflict, Invalid, Workflow
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import TurnLost
from tests.integration.dag.test_bad_runs import dump
from tests.integration.dag.test_runs import command, item, leased, turn
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns, drive


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    yield made
    await made.close()


def at(runs: DagRuns, version: str | None) -> DagRuns:
    runs.topic = f"wf/{TYPE}" if version is None else f"wfv/{version}/{TYPE}"
    return runs


async def move(runs: DagRuns, version: str | None) -> Any:
    run = await runs.client.workflows.get(runs.id).move(version)
    await runs.world.settle()
    return run


async def test_a_pinned_run_is_delivered_to_workers_of_its_version_alone(runs: DagRuns) -> None:
    await runs.start(version="2")
    assert await at(runs, None).lease() is None
    lease = await leased(at(runs, "2"))
    assert (await runs.turn(lease, turn(lease, 1, 1, 1, item(1)))).parked
    await runs.acked(lease)
    await runs.finish("pack#1")
    assert await at(runs, None).lease() is None and await at(runs, "2").lease() is not None
    assert [run.id for run in await runs.client.workflows.list(version="2", state="running")] == [runs.id]


async def test_a_parked_run_that_is_moved_is_delivered_to_the_others_when_it_wakes(runs: DagRuns) -> None:
    await runs.start(version="2")
    lease = await leased(at(runs, "2"))
    assert (await runs.turn(lease, turn(lease, 1, 1, 1, item(1)))).parked
    await runs.acked(lease)
    moved = await move(runs, "3")
    assert (moved.version, moved.parked) == ("3", True)
    assert await runs.lease() is None and await at(runs, "3").lease() is None
    await runs.signal("go", 1)
    assert await at(runs, "2").lease() is None
    awake = await leased(at(runs, "3"))
    assert [event.key for event in (await runs.history(awake, 0)).events][-1] == "signal:go#1"


async def test_a_run_that_a_worker_has_is_moved_under_it(runs: DagRuns) -> None:
    """What that one has not written is lost to it alone; its item is cancelled, since perhaps nobody takes it."""
    await runs.start(version="2")
    old = await leased(at(runs, "2"))
    before = await runs.events()
    assert (await move(runs, None)).version is None
    assert await runs.lease() is None, "the item of the version that nobody may have any more"
    with pytest.raises(TurnLost):
        await runs.turn(old, turn(old, 1, 1, 1, item(1)))
    new = await leased(at(runs, None))
    assert await runs.events() == before
    assert (await runs.turn(new, turn(new, 1, 1, 1, item(1)))).parked


async def test_a_delivery_whose_worker_died_before_its_ack_changes_nothing_after_a_move(runs: DagRuns) -> None:
    """Its turn has parked the run; it comes again where the run was, before the run is over and after."""

    async def code(wf: Workflow) -> Any:
        return await wf.receive("go")

    old_workers, driver = Driver({TYPE: code}, runs.runs), Driver({TYPE: code}, runs.runs)
    await runs.start(version="2")
    old = await leased(at(runs, "2"))
    await driver.work(TYPE, old)
    await move(runs, "3")
    assert await runs.lease() == old, "nobody has acked it"
    before = await dump(runs.world)
    await old_workers.work(TYPE, old)
    assert await dump(runs.world) == before
    await runs.signal("go", 7)
    before = await dump(runs.world)
    await old_workers.work(TYPE, old)
    await runs.acked(old)
    assert await dump(runs.world) == before
    assert await runs.lease() is None
    await drive(at(runs, "3"), driver)
    assert (await runs.shown())["output"] == 7
    await old_workers.work(TYPE, old)


async def test_a_stuck_run_is_tried_at_once_where_it_is_moved_to(runs: DagRuns) -> None:
    await runs.start(version="2")
    lease = await leased(at(runs, "2"))
    stuck = {"code": "mismatch", "error": "no"}
    await runs.turn(lease, turn(lease, 1, 0, 0, stuck=stuck))
    assert (await runs.shown())["stuck"] == "mismatch"
    moved = await move(runs, "3")
    assert moved.stuck is None
    ready = runs.world.queue.ready(f"wfv/3/{TYPE}")
    assert len(ready) == 1 and "delay_s" not in ready[0].body


async def test_what_is_moved_where_it_is_stays_as_it_is_and_what_is_over_too(runs: DagRuns) -> None:
    await runs.start(version="2")
    lease = await leased(at(runs, "2"))
    await move(runs, "2")
    end = command("end", state="succeeded", output=1)
    assert (await runs.turn(lease, turn(lease, 1, 1, 1, end))).ended
    with pytest.raises(Conflict, match="succeeded"):
        await move(runs, "3")
    assert (await runs.client.workflows.get(runs.id).show()).version == "2"


async def test_a_pinned_run_goes_on_as_a_new_one_of_its_version(runs: DagRuns) -> None:
    async def code(wf: Workflow, left: int | None) -> str:
        if left:
            wf.continue_as_new(left - 1)
        return "done"

    driver = Driver({TYPE: code}, runs.runs)
    await runs.start(1, version="2")
    lease = await leased(at(runs, "2"))
    await driver.work(TYPE, lease)
    await runs.acked(lease)
    run = await runs.client.workflows.get(runs.id).show()
    assert (run.state, run.version) == ("running", "2")
    assert run.run is not None
    runs.dag = run.run
    await drive(runs, driver)
    assert (await runs.shown())["output"] == "done"


@pytest.mark.parametrize("version", ["", "a/b", "v 1", "é", "x" * 65])
async def test_what_is_no_version_is_refused(runs: DagRuns, version: str) -> None:
    with pytest.raises(Invalid):
        await runs.start(version=version)
    with pytest.raises(Invalid):
        await runs.client.workflows.start("x" * 100, version="y" * 24)
    await runs.start()
    with pytest.raises(Invalid):
        await move(runs, version)
    assert await runs.world.rows("SELECT version FROM run WHERE version IS NOT NULL") == []


async def test_a_type_may_be_too_long_for_a_version_to_move_to(runs: DagRuns) -> None:
    long = await runs.client.workflows.start("x" * 100, id="long")
    with pytest.raises(Invalid, match="too long"):
        await long.move("y" * 24)
    assert (await long.move("y" * 23)).version == "y" * 23
