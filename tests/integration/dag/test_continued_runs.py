"""Runs that go on as new ones: what was asked of a run that its code was not told of holds for the next one."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from headgate.workflow.turns import Lease, Turn
from tests.integration.dag.test_bad_runs import dump
from tests.integration.dag.test_runs import command, leased, turn
from tests.support.dag_world import DagWorld
from tests.support.run_services import DagRuns


@pytest.fixture
async def runs(world: DagWorld) -> AsyncIterator[DagRuns]:
    made = DagRuns(world)
    await made.start()
    yield made
    await made.close()


def goes_on(lease: Lease, last: int, seen: int) -> Turn:
    return turn(lease, 1, last, seen, command("end", "", after=seen, state="continued", input=True))


async def follow(runs: DagRuns, lease: Lease) -> None:
    """From now on the next run is meant."""
    await runs.acked(lease)
    run = await runs.client.workflows.get(runs.id).show()
    assert (run.state, run.run != runs.dag) == ("running", True)
    runs.dag = str(run.run)


async def told(runs: DagRuns) -> list[Any]:
    return [(event.kind, event.state, event.data) for event in await runs.events()][1:]


async def test_a_cancel_that_code_was_not_told_of_is_one_of_the_next_run(runs: DagRuns) -> None:
    lease = await leased(runs)
    await runs.signal("go", 1)
    await runs.cancel("enough")
    await runs.turn(lease, goes_on(lease, 1, 1))
    await follow(runs, lease)
    signal, cancel = await told(runs)
    assert signal[:2] == ("signal", "received")
    assert cancel == ("run", "cancel_requested", {"reason": "enough"})
    [dag] = await runs.world.rows("SELECT deadline_at FROM dag WHERE id = $1", runs.dag)
    assert dag["deadline_at"] is not None, "it is ended where it does not end by itself"
    await runs.cancel("once more")
    assert len(await told(runs)) == 2


async def test_code_that_was_told_of_a_cancel_and_goes_on_is_not_told_again(runs: DagRuns) -> None:
    lease = await leased(runs)
    await runs.cancel("enough")
    await runs.turn(lease, goes_on(lease, 2, 2))
    await follow(runs, lease)
    assert await told(runs) == []


async def deadline(runs: DagRuns, ago_s: float | None = None) -> datetime:
    """Until when the run is to have ended; with `ago_s` that was so long ago."""
    if ago_s is not None:
        await runs.world.rows(
            "UPDATE dag SET created_at = created_at - make_interval(secs => $1),"
            " deadline_at = deadline_at - make_interval(secs => $1)",
            ago_s,
        )
    [dag] = await runs.world.rows("SELECT deadline_at FROM dag WHERE id = $1", runs.dag)
    found: datetime = dag["deadline_at"]
    return found


@pytest.fixture
async def limited(world: DagWorld) -> AsyncIterator[DagRuns]:
    """A run with a deadline, half of whose time has passed."""
    made = DagRuns(world)
    await made.start(deadline_s=100)
    await deadline(made, 50)
    yield made
    await made.close()


async def test_the_runs_of_an_id_that_go_on_as_new_ones_have_one_deadline(limited: DagRuns) -> None:
    runs, first = limited, await deadline(limited)
    for _ in range(2):
        lease = await leased(runs)
        await runs.turn(lease, goes_on(lease, 1, 1))
        await follow(runs, lease)
        assert await deadline(runs) == first
    await deadline(runs, 60)
    await runs.world.sweep()
    assert await told(runs) == [("run", "cancel_requested", {"reason": "its deadline of 100 s passed"})]


@pytest.mark.parametrize("passed", [True, False], ids=["by its deadline", "by a call"])
async def test_code_that_was_asked_to_end_and_goes_on_has_the_deadline_that_it_had(
    limited: DagRuns, passed: bool
) -> None:
    runs = limited
    if passed:
        await deadline(runs, 60)
    else:  # nor is it lost where that is not the first of them
        lease = await leased(runs)
        await runs.turn(lease, goes_on(lease, 1, 1))
        await follow(runs, lease)
    first = await deadline(runs)
    await (runs.world.sweep() if passed else runs.cancel("enough"))
    assert await deadline(runs) != first, "the time to clean up"
    lease = await leased(runs)
    await runs.turn(lease, goes_on(lease, 2, 2))
    await follow(runs, lease)
    # It is reckoned anew from when the run was made; the clock was read once for that, and once for the deadline.
    assert abs(await deadline(runs) - first) < timedelta(seconds=1)
    await runs.world.sweep()
    assert len(await told(runs)) == int(passed), "it is asked once more where the time is over"


async def test_a_run_that_is_paused_and_goes_on_as_a_new_one_stays_paused(runs: DagRuns) -> None:
    lease = await leased(runs)
    await runs.client.workflows.get(runs.id).pause()
    await runs.turn(lease, goes_on(lease, 1, 1))
    await follow(runs, lease)
    await runs.signal("go", 1)
    assert await runs.lease() is None
    await runs.resume()
    assert [event.kind for event in (await runs.history(await leased(runs), 0)).events] == ["run", "signal"]


# Postgres reads no JSON with a NUL, and the rest looks like what a run keeps beside it.
SENT: Any = {"\0": ["\0", '","data":1,"id":"x"'], "data": '\\","data":', "deadline_at": "2001-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "input", [SENT, '\0,"deadline_at":"2001-01-01T00:00:00Z"}', None], ids=["", "text", "none"]
)
async def test_inputs_and_signals_that_hold_what_postgres_reads_in_no_json_go_on(
    world: DagWorld, input: Any
) -> None:
    runs = DagRuns(world)
    await runs.start(input, deadline_s=100)
    await runs.signal('go ","data":', SENT, id='s","data":1')
    first, sent = await deadline(runs), (await told(runs))[0]
    for _ in range(2):
        lease = await leased(runs)
        ends = command("end", "", after=1, state="continued", input=input)
        await runs.turn(lease, turn(lease, 1, 2, 1, ends))
        await follow(runs, lease)
        assert await deadline(runs) == first
        assert await told(runs) == [sent]
        assert (await runs.events())[0].data.get("input") == input
    assert not await runs.signal('go ","data":', SENT, id='s","data":1'), "its id goes on, too"
    await runs.close()


async def test_a_reset_that_is_sent_again_once_its_run_has_gone_on_as_a_new_one_is_one(runs: DagRuns) -> None:
    """Its answer was lost, and the code that went on has ended its run meanwhile."""
    handle = runs.client.workflows.get(runs.id)
    for number in (1, 2):
        await handle.reset(1, id="r-1")
        lease = await leased(runs)
        await runs.turn(lease, turn(lease, 1, 1, 1, command("end", "", state="continued", input=number)))
        await follow(runs, lease)
        before = await dump(runs.world)
        assert (await handle.reset(1, id="r-1")).resets == 0
        assert await dump(runs.world) == before
    assert (await handle.reset(1, id="r-2")).resets == 1


@pytest.mark.parametrize(
    "again", [{"retry": ["step:s#1"]}, {"outputs": {"step:s#1": 2}}], ids=["retry", "outputs"]
)
async def test_a_resume_that_is_sent_again_once_its_run_has_gone_on_as_a_new_one_is_one(
    runs: DagRuns, again: dict[str, Any]
) -> None:
    """The next run has failed as that one had, and asked for what has the same key."""

    async def fails() -> None:
        lease = await leased(runs)
        step = command("step", "step:s#1", name="s", args=[])
        result = {"key": "step:s#1", "state": "failed", "error": "boom"}
        await runs.turn(lease, turn(lease, 1, 1, 1, step, results=[result]))
        ends = command("end", "", after=3, state="failed", error="boom")
        await runs.turn(lease, turn(lease, 2, 3, 3, ends))
        await runs.acked(lease)

    handle = runs.client.workflows.get(runs.id)
    await fails()
    assert (await handle.resume(id="r-1", **again)).state == "running"
    lease = await leased(runs)
    last = (await runs.events())[-1].event
    ends = command("end", "", after=last, state="continued", input=2)
    results = [{"key": "step:s#1", "state": "succeeded", "output": 2}] if "retry" in again else []
    await runs.turn(lease, turn(lease, 3, last, last, ends, results=results))
    await follow(runs, lease)
    await fails()
    before = await dump(runs.world)
    assert (await handle.resume(id="r-1", **again)).state == "failed"
    assert await dump(runs.world) == before


async def test_a_resume_with_outputs_that_are_there_is_one_when_it_is_sent_again(runs: DagRuns) -> None:
    """It was no more than a resume; meanwhile the run has failed again."""

    async def fails(number: int, last: int) -> None:
        lease = await leased(runs)
        ends = command("end", "", after=last, state="failed", error="boom")
        await runs.turn(lease, turn(lease, number, last, last, ends))
        await runs.acked(lease)

    handle = runs.client.workflows.get(runs.id)
    lease = await leased(runs)
    step = command("step", "step:s#1", name="s", args=[])
    result = {"key": "step:s#1", "state": "succeeded", "output": 1}
    await runs.turn(lease, turn(lease, 1, 1, 1, step, results=[result]))
    await fails(2, 2)
    assert (await handle.resume(id="r-1", outputs={"step:s#1": 1})).state == "running"
    await fails(3, 2)
    assert (await handle.resume(id="r-1", outputs={"step:s#1": 1})).state == "failed"
    assert (await handle.resume(id="r-2", outputs={"step:s#1": 1})).state == "running"
