"""What is kept of the runs that schedules have begun."""

import pytest

from services.dag.schedules import ticking
from tests.integration.dag.test_schedules import HOUR, at_midnight, later, put
from tests.support.dag_world import DagWorld

__all__ = ["at_midnight"]


async def test_runs_that_have_ended_are_forgotten_behind_many_that_go_on(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticking, "_RUNS_PER_STEP", 2)
    await put(world, "nightly", overlap="allow")
    for hour in range(1, 7):
        await later(world, hour * HOUR + 2)
    for item in [world.queue.items[name] for name in sorted(world.queue.items)][3:]:
        world.queue.end(item, "acked")
    await world.settle()
    for hour in range(7, 13):
        await later(world, hour * HOUR + 2)
    runs = await world.rows(
        "SELECT d.state FROM schedule_run r JOIN dag d ON d.no = r.dag_no ORDER BY r.dag_no LIMIT 6"
    )
    assert [row["state"] for row in runs] == ["running"] * 6
