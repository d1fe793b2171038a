"""What is kept of the runs that schedules have begun, and of the requests for them."""

import uuid

import pytest

from services.dag.schedules import ticking
from tests.integration.dag.test_schedules import HOUR, at_midnight, call, later, put
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


async def test_a_trigger_and_a_backfill_of_one_name_are_two_requests(world: DagWorld) -> None:
    """Else the one that comes second would be answered, and never made."""
    await put(world, "nightly", paused=True)
    request = {"request_id": str(uuid.uuid4())}
    body = {"start": "2026-05-31T00:00:00Z", "end": "2026-05-31T03:00:00Z", **request}
    first = await call(world, "POST", "/nightly/trigger", request)
    assert await call(world, "POST", "/nightly/backfill", body, 202) == {"slots": 3}
    assert await call(world, "POST", "/nightly/trigger", request) == first
    await put(world, "second", paused=True)
    assert await call(world, "POST", "/second/backfill", body, 202) == {"slots": 3}
    assert (await call(world, "POST", "/second/trigger", request))["kind"] == "trigger"
