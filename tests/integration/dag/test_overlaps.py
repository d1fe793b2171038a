"""Slots that come while a run of their schedule is unfinished: those that wait, and those that end the others."""

from tests.integration.dag.test_schedules import HOUR, at_midnight, call, decide, end_runs, later, put, ticks
from tests.support.dag_world import DagWorld

__all__ = ["at_midnight"]


async def test_overlap_buffer_all_keeps_each_and_starts_one_after_another(world: DagWorld) -> None:
    await put(world, "nightly", overlap="buffer_all")
    for hour in (1, 2, 3):
        await later(world, hour * HOUR + 1)
    decisions = ["started", "buffered", "buffered"]
    assert [decision for _, _, decision, _ in await ticks(world, "nightly")] == decisions
    for number in (1, 2):
        await end_runs(world)
        await decide(world)
        decisions[number] = "started"
        assert [decision for _, _, decision, _ in await ticks(world, "nightly")] == decisions
    assert await world.rows("SELECT FROM waiting_slot") == []


async def test_overlap_cancel_other_starts_when_the_cancelled_run_is_over(world: DagWorld) -> None:
    await put(world, "nightly", overlap="cancel_other")
    await later(world, HOUR + 1)
    await later(world, 2 * HOUR + 1)
    await decide(world)
    assert [tick[2:] for tick in await ticks(world, "nightly")] == [("started", None), ("started", None)]
    found = await world.rows("SELECT state, reason FROM dag ORDER BY no")
    assert [row["state"] for row in found] == ["cancelled", "running"]
    assert "next slot" in found[0]["reason"]


async def test_overlap_terminate_other_starts_at_once(world: DagWorld) -> None:
    await put(world, "nightly", overlap="terminate_other")
    await later(world, HOUR + 1)
    await later(world, 2 * HOUR + 1)
    assert [tick[2:] for tick in await ticks(world, "nightly")] == [("started", None), ("started", None)]
    assert (await call(world, "POST", "/nightly/trigger", {}))["decision"] == "started"
    await world.settle()
    states = [row["state"] for row in await world.rows("SELECT state FROM dag ORDER BY no")]
    assert states == ["cancelled", "cancelled", "running"]
