"""What callers of the DAG service read: the members, states and lists that the contract fixes, by their names."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Databases
from tests.support.queue_fake import FakeQueue

DAG = {
    "id", "key", "name", "namespace", "state", "open", "held", "paused", "created_at", "finished_at", "nodes",
    "on_failure", "metadata",
}  # fmt: skip
COUNTS = {"total", "blocked", "released", "succeeded", "failed", "skipped", "cancelled"}
NODE = {
    "key", "item_id", "state", "generation", "topic", "upstream", "downstream", "external", "blocked_by",
    "attempts", "output", "error", "created_at", "released_at", "finished_at",
}  # fmt: skip
DAG_STATES = ("running", "succeeded", "failed", "cancelling", "cancelled")
NODE_STATES = ("blocked", "released", "succeeded", "failed", "skipped", "cancelled")
# As real graphs have them: nothing in a key means anything to the service.
KEYS = ("g++", "//pkg/tcpip:stack", "a b&c=d#?%2F", "ключ", "😀", "k" * 200, "é" * 100)


@pytest.fixture(scope="module")
async def world(databases: Databases) -> AsyncIterator[DagWorld]:
    database = await databases.create(queue_shards=1, dag_shards=2)
    made = DagWorld(database, FakeQueue())
    try:
        yield made
        await made.audit()
    finally:
        await made.close()
        await databases.drop(database)


async def pages(world: DagWorld, path: str, **query: Any) -> list[Any]:
    """All of a list, two at a time."""
    found: list[Any] = []
    cursor: dict[str, str] = {}
    for _ in range(100):
        answer = await world.http.get(path, params={"limit": 2, **query, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= 2
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}
    raise AssertionError(f"{path} has no end")


async def test_an_empty_body_makes_a_dag_of_defaults(world: DagWorld) -> None:
    answer = await world.http.post(BASE)
    assert answer.status_code == 201
    made = answer.json()
    assert made.keys() >= DAG
    assert made["nodes"] == dict.fromkeys(COUNTS, 0)
    told = {name: made[name] for name in DAG - {"id", "created_at", "nodes"}}
    assert told == {
        "key": None, "name": None, "namespace": "default", "state": "running", "open": False, "held": False,
        "paused": False, "finished_at": None, "on_failure": "continue", "metadata": None,
    }  # fmt: skip
    assert (await world.verb(made["id"], "close"))["state"] == "succeeded"


async def test_a_dag_looks_the_same_wherever_it_is_told_of(world: DagWorld) -> None:
    body = {"key": "//order g++", "name": "n", "metadata": {"a": 1}, "nodes": [{"key": "a", "topic": "t"}]}
    made, again, other = [
        await world.http.post(BASE, json={**body, "hold": True} | change) for change in ({}, {}, {"name": "m"})
    ]
    marks = [
        (answer.status_code, answer.json()["existing"], answer.json()["same"]) for answer in (made, again, other)
    ]
    assert marks == [(201, False, True), (200, True, True), (200, True, False)]
    dag = await world.dag(made.json()["id"])
    assert dag.items() <= again.json().items()
    assert [dag] == await pages(world, BASE, key="//order g++", name="n", state="running")
    assert await pages(world, BASE, key="//order g++", state="failed") == []
    assert (await world.verb(dag["id"], "release")).keys() >= DAG


async def test_a_node_tells_all_that_keeps_it(world: DagWorld) -> None:
    dag = await world.create(
        [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["e"]}], hold=True, open=True
    )
    node = await world.node(dag, "b")
    assert node.keys() >= NODE
    assert {block["kind"] for block in node["blocked_by"]} == {"node", "external", "hold"}
    assert [(each["name"], each["resolved"]) for each in node["external"]] == [("e", False)]
    assert (node["upstream"], (await world.node(dag, "a"))["downstream"]) == (["a"], ["b"])
    assert await pages(world, f"{BASE}/{dag}/nodes") == [await world.node(dag, "a"), node]
    results = (
        await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "e"}, {"node": "z", "name": "e"}]})
    )["results"]
    assert results[0] == {"node": "b", "name": "e", "status": "resolved", "declared": True}
    assert results[1].items() >= {"node": "z", "name": "e", "status": "resolved", "declared": False}.items()
    await world.verb(dag, "release")
    await world.verb(dag, "pause")
    assert {block["kind"] for block in (await world.node(dag, "b"))["blocked_by"]} == {"node", "pause"}
    added = await world.add(dag, [{"key": "c", "external": ["e"]}])
    assert [set(node) >= {"key", "item_id", "state"} for node in added["nodes"]] == [True]


async def test_lists_are_read_to_their_ends_and_filtered_by_every_state(world: DagWorld) -> None:
    dag = await world.create({f"n{number}": [] for number in range(5)}, hold=True, name="paged")
    for state in NODE_STATES:
        found = await pages(world, f"{BASE}/{dag}/nodes", state=state)
        assert [node["key"] for node in found] == [f"n{number}" for number in range(5) if state == "blocked"]
    made = [await world.create(name="many") for _ in range(5)]
    for state in DAG_STATES:
        found = await pages(world, BASE, name="many", state=state)
        assert sorted(each["id"] for each in found) == (sorted(made) if state == "running" else [])
    shards = await pages(world, "/v1/shards")
    assert [each["shard"] for each in shards] == [0, 1]
    assert {"dags", "nodes", "ack_lag_s", "release_lag_s", "owner", "db_latency_ms_p50"} <= shards[0].keys()


@pytest.mark.parametrize("key", KEYS)
async def test_keys_are_whatever_their_caller_likes(world: DagWorld, key: str) -> None:
    dag = await world.create([{"key": key}, {"key": "below", "upstream": [key]}], hold=True)
    assert (await world.node(dag, key))["key"] == key
    assert (await world.node(dag, "below"))["upstream"] == [key]
    assert (await world.add(dag, [{"key": key}]))["nodes"][0]["state"] == "blocked"


@pytest.mark.parametrize("trigger", ["any_succeeded", "any_failed"])
async def test_an_upstream_may_come_by_a_dependency_of_the_same_call(world: DagWorld, trigger: str) -> None:
    dag = await world.create(
        [{"key": "a"}, {"key": "b", "trigger": trigger}],
        dependencies=[{"upstream": "a", "downstream": "b"}],
        hold=True,
    )
    await world.add(dag, [{"key": "c", "trigger": trigger}], dependencies=[{"upstream": "a", "downstream": "c"}])
    refused = await world.add(dag, [{"key": "d", "trigger": trigger}], expect=422)
    assert refused["errors"][0]["pointer"].startswith("/nodes/0")


@pytest.mark.parametrize(
    "more",
    [{"open": True}, {"hold": True, "nodes": [{"key": "a", "topic": "t"}]}, {}],
    ids=["open", "held", "empty"],
)
async def test_a_deadline_ends_what_nothing_else_would(world: DagWorld, more: dict[str, Any]) -> None:
    dag = await world.create(deadline_s=100, **more)
    for shard in world.duties.context.shards:
        watcher = await world.looking_at(shard)
        await watcher.execute("UPDATE dag SET deadline_at = shard_now() - interval '1 s' WHERE id = $1", dag)
    await world.sweep()
    assert (await world.dag(dag))["state"] == "failed"
