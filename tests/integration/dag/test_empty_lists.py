"""Optional lists may be empty, by both ways in: programs do not leave out what has no elements."""

from typing import Any

import httpx
import pytest

from tests.support.dag_world import BASE, DagWorld


@pytest.fixture(params=["routes", "short way"])
async def world(world: DagWorld, request: pytest.FixtureRequest) -> DagWorld:
    """The service behind one of its two ways in."""
    if request.param == "short way":
        transport = httpx.ASGITransport(app=world.app.state.hot, raise_app_exceptions=False)
        world.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    return world


async def _post(world: DagWorld, path: str, body: dict[str, Any]) -> Any:
    answer = await world.http.post(f"{BASE}{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def test_a_dag_of_empty_lists_is_an_empty_dag(world: DagWorld) -> None:
    made = await _post(world, "", {"nodes": [], "dependencies": []})
    assert (made["state"], made["nodes"]["total"]) == ("running", 0)


@pytest.mark.parametrize("trigger", ["all_succeeded", "all_done", "none_failed"])
async def test_a_node_of_empty_lists_waits_for_nothing(world: DagWorld, trigger: str) -> None:
    node = {"key": "a", "topic": "t", "trigger": trigger, "upstream": [], "external": []}
    made = await _post(world, "", {"nodes": [node], "dependencies": []})
    added = await _post(world, f"/{made['id']}/nodes", {"nodes": [{**node, "key": "b"}], "dependencies": []})
    assert (made["nodes"]["released"], added["nodes"][0]["state"]) == (1, "released")


async def test_an_empty_list_and_none_are_the_same_node(world: DagWorld) -> None:
    made = await _post(world, "", {"open": True})
    path = f"/{made['id']}/nodes"
    first = await _post(world, path, {"nodes": [{"key": "a", "topic": "t"}]})
    assert (
        await _post(world, path, {"nodes": [{"key": "a", "topic": "t", "upstream": [], "external": []}]}) == first
    )


async def test_a_compensation_may_say_that_it_waits_for_nothing(world: DagWorld) -> None:
    undo = {"key": "undo", "topic": "t", "compensates": "a", "upstream": [], "external": []}
    made = await _post(world, "", {"nodes": [{"key": "a", "topic": "t"}, undo]})
    assert made["nodes"]["total"] == 2


async def test_an_any_trigger_still_needs_an_upstream(world: DagWorld) -> None:
    node = {"key": "a", "topic": "t", "trigger": "any_succeeded", "upstream": []}
    answer = await world.http.post(BASE, json={"nodes": [node]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/nodes/0/trigger")


@pytest.mark.parametrize("named", [{"nodes": []}, {"from": []}])
async def test_a_retry_of_no_nodes_runs_nothing_again(world: DagWorld, named: dict[str, Any]) -> None:
    # Failed and, by policy, cancelled nodes are there; neither may come back for a list that names none.
    dag = await world.create({"a": [], "b": []}, on_failure="cancel")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    answer = await world.http.post(f"{BASE}/{dag}/retry", json=named)
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_to_retry")


async def test_no_other_payloads_are_none(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await _post(world, f"/{dag}/retry", {"payloads": {}}))["state"] == "running"


@pytest.mark.parametrize(
    "named", [{"nodes": ["a"], "from": []}, {"nodes": [], "from": ["a"]}, {"nodes": [], "from": [], "all": True}]
)
async def test_an_empty_list_beside_what_a_retry_names_is_none(world: DagWorld, named: dict[str, Any]) -> None:
    dag = (await _post(world, "", {"nodes": [{"key": "a", "topic": "work"}]}))["id"]
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await _post(world, f"/{dag}/retry", named))["state"] == "running"
