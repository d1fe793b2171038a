"""Schedules as a list, and as the SDK speaks of them."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from headgate import AsyncClient, Dag
from tests.integration.dag.test_schedules import HOUR, at_midnight, call, put
from tests.support.dag_world import DagWorld

__all__ = ["at_midnight"]


async def test_schedules_are_listed_by_id_and_bounded(world: DagWorld) -> None:
    world.settings.__dict__["namespace_schedules_max"] = 5
    for n in (3, 1, 4, 2, 0):
        await put(world, f"s{n}")
    refused = await put(world, "s9", 422)
    assert refused["code"] == "limit_exceeded"
    await put(world, "s3", 200)
    page = await call(world, "GET", "?limit=3")
    assert [each["id"] for each in page["items"]] == ["s0", "s1", "s2"]
    rest = await call(world, "GET", f"?limit=3&cursor={page['next_cursor']}")
    assert [each["id"] for each in rest["items"]] == ["s3", "s4"] and rest["next_cursor"] is None


async def test_the_sdk_speaks_of_schedules(world: DagWorld) -> None:
    transport = httpx.ASGITransport(app=world.app.state.hot, raise_app_exceptions=False)
    client = AsyncClient(
        queue_url="http://localhost", dag_url="http://localhost", namespace="default", transport=transport
    )
    flow = Dag("album")
    flow.node("stitch", "work")
    made = await client.schedules.put("nightly", cron="0 3 * * *", tz="Europe/Paris", topic="work", payload=1)
    assert made.next_at == datetime(2026, 6, 1, 1, tzinfo=UTC)
    await client.schedules.put("flow", interval_s=HOUR, dag=flow, overlap="allow")
    await client.schedules.put("once", at=datetime(2026, 6, 2, tzinfo=UTC), topic="work", max_attempts=3)
    assert [each.id for each in await client.schedules.all()] == ["flow", "nightly", "once"]
    tick = await client.schedules.trigger("flow")
    assert tick.decision == "started" and tick.run is not None
    assert (await client.dag(tick.run).show()).name == "album"
    end = datetime(2026, 6, 1, tzinfo=UTC)
    assert await client.schedules.backfill("flow", end - timedelta(hours=3), end) == 3
    assert (await client.schedules.pause("nightly", "why")).reason == "why"
    assert (await client.schedules.resume("nightly")).paused is False
    assert [tick.decision for tick in await client.schedules.ticks("flow")] == ["started"]
    assert await client.schedules.delete("once") is True
    with pytest.raises(ValueError, match="topic=, dag= and workflow="):
        await client.schedules.put("neither", interval_s=5)
    await world.settle()
