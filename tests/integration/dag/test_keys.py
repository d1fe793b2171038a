"""DAGs by the key that they were made with: found again, one at most, and never instead of another."""

import httpx
import pytest

from tests.contract.test_query_parameters import DAG, named, refusal
from tests.support.dag_world import BASE, DagWorld


async def _listed(world: DagWorld, **query: str) -> list[str]:
    answer = await world.http.get(BASE, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["next_cursor"] is None
    return [dag["key"] for dag in answer.json()["items"]]


async def test_a_key_lists_its_dag_alone(world: DagWorld) -> None:
    for key in ("order/77", "order/7", "order/777", "Order/77"):
        await world.create({"a": []}, key=key, name="order")
    await world.create({"a": []}, name="order")
    assert await _listed(world, key="order/77") == ["order/77"]
    assert await _listed(world, key="order") == []
    assert await _listed(world, key="") == []
    assert await _listed(world, key="order/77", name="order", state="running") == ["order/77"]
    assert await _listed(world, key="order/77", name="other") == []
    assert await _listed(world, key="order/77", state="failed") == []


async def test_a_key_is_found_also_of_an_ended_dag_and_not_in_another_namespace(world: DagWorld) -> None:
    dag = await world.create({"a": []}, key="order/77")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert await _listed(world, key="order/77") == ["order/77"]
    other = await world.http.get(BASE.replace("default", "other"), params={"key": "order/77"})
    assert other.json()["items"] == []


@pytest.mark.parametrize(("method", "path"), named(DAG))
async def test_no_call_ignores_a_parameter(world: DagWorld, method: str, path: str) -> None:
    for app in (world.app, world.app.state.hot):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://dag") as client:
            assert "/surprise" in await refusal(client, method, path, "surprise=1")


async def test_a_misspelt_filter_lists_nothing(world: DagWorld) -> None:
    told = await refusal(world.http, "get", BASE, "stat=failed&nme=x")
    assert told == {
        "/stat": "there is no such query parameter; did you mean `state`?",
        "/nme": "there is no such query parameter; did you mean `name`?",
    }
