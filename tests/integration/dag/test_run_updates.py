"""Updates of runs: what code answers is kept with its turn, and told to whoever asks for it, once or again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Conflict, NotFound, Workflow
from headgate.wire.workflow import RunUpdate
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import Diverged
from tests.integration.dag.test_runs import command, leased, turn
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns, drive


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    await made.start()
    yield made
    await made.close()


async def ask(runs: DagRuns, id: str, data: Any = None, name: str = "add") -> RunUpdate:
    found = await runs.client.workflows.get(runs.id).update(name, data, id=id, wait_s=0)
    await runs.world.settle()
    return found


async def state(runs: DagRuns, id: str, wait_s: float = 0.0) -> dict[str, Any]:
    found = await runs.client.workflows.get(runs.id).update_state(id, wait_s=wait_s)
    return found.model_dump(exclude_none=True, exclude={"id"})


def answer(number: int, after: int, id: str, **told: Any) -> dict[str, Any]:
    return command("answer", f"signal:add#{number}", after, id=id, **{"state": "done", **told})


async def adds(wf: Workflow) -> int:
    total = 0

    async def add(count: int) -> int:
        nonlocal total
        total += await wf.call("pack", count)
        return total

    def positive(count: int) -> None:
        if count <= 0:
            raise ValueError("nothing to add")

    wf.on_update("add", add, validator=positive)
    await wf.receive("order")
    return total


async def test_an_update_is_answered_by_what_its_handler_returns(runs: DagRuns) -> None:
    driver = Driver({TYPE: adds}, runs.runs)
    assert (await ask(runs, "one", 5)).status == "pending"
    assert (await ask(runs, "none", 0)).status == "pending"
    await drive(runs, driver)
    assert await state(runs, "one") == {"status": "pending"}, "its handler awaits a task"
    assert await state(runs, "none") == {"status": "rejected", "error": "nothing to add"}
    await runs.finish("pack#1", output=5)
    await drive(runs, driver)
    assert await state(runs, "one") == {"status": "done", "output": 5}
    assert (await ask(runs, "one", 7)).model_dump(exclude_none=True) == {
        "id": "one",
        "status": "done",
        "output": 5,
    }
    await ask(runs, "late", 1)
    await runs.signal("order")
    await drive(runs, driver)
    assert await state(runs, "late") == {
        "status": "failed",
        "error": "the run has ended before it was answered: succeeded",
    }
    with pytest.raises(Conflict, match="succeeded"):
        await ask(runs, "too-late", 1)
    for id in ("one", "none", "late"):
        assert (await ask(runs, id, 1)).status != "pending", "the same update again, also of a run that is over"


async def test_whoever_waits_is_told_as_the_answer_is_written(runs: DagRuns) -> None:
    lease = await leased(runs)
    await ask(runs, "one")
    waits = asyncio.create_task(state(runs, "one", 20))
    while not len(runs.world.duties.context.watches):
        await asyncio.sleep(0)
    step = command("step", "step:a#1", 1, name="a")
    await runs.turn(lease, turn(lease, 1, 2, 2, step, answer(1, 2, "one", output=7)))
    assert await asyncio.wait_for(waits, 10) == {"status": "done", "output": 7}


async def test_the_first_answer_stands_and_a_turn_that_was_answered_is_answered_again(runs: DagRuns) -> None:
    lease = await leased(runs)
    await ask(runs, "one")
    first = turn(lease, 1, 2, 2, answer(1, 2, "one", output=1), command("step", "step:a#1", 2, name="a"))
    told = await runs.turn(lease, first)
    assert await runs.turn(lease, first) == told
    await ask(runs, "two")
    await runs.turn(lease, turn(lease, 2, 5, 5, answer(1, 5, "one", state="failed", error="no")))
    assert await state(runs, "one") == {"status": "done", "output": 1}


async def test_an_answer_to_what_was_not_asked_writes_nothing(runs: DagRuns) -> None:
    lease = await leased(runs)
    await runs.signal("add", 1, id="plain")
    before = await runs.world.rows("SELECT * FROM run"), await runs.events()
    for id in ("plain", "nobody"):
        with pytest.raises(Diverged, match="not sent"):
            await runs.turn(lease, turn(lease, 1, 2, 2, answer(1, 2, id)))
        with pytest.raises(NotFound, match="no such update"):
            await state(runs, id)
    assert (await runs.world.rows("SELECT * FROM run"), await runs.events()) == before


@pytest.mark.parametrize("is_over", [False, True])
async def test_an_id_is_an_updates_or_a_signals_and_the_other_is_refused(runs: DagRuns, is_over: bool) -> None:
    await runs.signal("s", id="signal")
    await ask(runs, "update")
    if is_over:
        await runs.client.workflows.get(runs.id).terminate("enough")
    before = await runs.events()
    with pytest.raises(Conflict, match="used by a signal") as refused:
        await ask(runs, "signal")
    assert refused.value.code == "key_reused"
    with pytest.raises(Conflict, match="used by an update") as refused:
        await runs.signal("s", id="update")
    assert refused.value.code == "key_reused"
    assert await runs.events() == before
    assert not await runs.signal("s", id="signal"), "the same signal again is a duplicate still"
    await ask(runs, "update")


async def test_updates_that_were_not_received_go_on_with_the_next_run_and_others_fail(runs: DagRuns) -> None:
    async def twice(wf: Workflow, is_second: bool | None) -> int:
        if is_second:
            await adds(wf)
            return 2
        handling = asyncio.create_task(wf.receive("go"))

        async def hold(_data: Any) -> None:
            await wf.call("pack")

        wf.on_update("held", hold)
        await handling
        return wf.continue_as_new(True)

    driver = Driver({TYPE: twice}, runs.runs)
    await ask(runs, "held", name="held")
    await ask(runs, "answered", name="go")
    await ask(runs, "next", 1)
    lease = await leased(runs)
    await driver.work(TYPE, lease)
    await runs.acked(lease)
    run = await runs.client.workflows.get(runs.id).show()
    assert run.run not in (None, runs.dag)
    runs.dag = str(run.run)
    assert await state(runs, "answered") == {"status": "done"}
    failed = {"status": "failed", "error": "the run went on as a new one before it had answered"}
    assert await state(runs, "held") == failed
    assert await state(runs, "next") == {"status": "pending"}
    await drive(runs, driver)
    await runs.finish("pack#1", output=1)
    await drive(runs, driver)
    assert await state(runs, "next") == {"status": "done", "output": 1}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"id": None}, "id"),
        ({"id": "x" * 300}, "id"),
        ({"state": "pending"}, "state"),
        ({"error": 7}, "error"),
        ({"more": 1}, "more"),
    ],
)
async def test_an_answer_that_is_none_is_refused(runs: DagRuns, spec: dict[str, Any], where: str) -> None:
    lease = await leased(runs)
    await ask(runs, "one")
    before = await runs.events()
    body = turn(lease, 1, 2, 2, answer(1, 2, "one") | {"spec": {"id": "one", "state": "done"} | spec}).body()
    got = await runs.world.http.post(f"/v1/namespaces/default/dags/{runs.dag}/turn", json=body)
    assert (got.status_code, got.json()["code"]) == (422, "bad_command"), got.text
    assert where in got.json()["errors"][0]["pointer"]
    assert await runs.events() == before
