"""What the DAGs of a namespace wait for that somebody has to resolve: found without knowing which DAG it is."""

from typing import Any

import pytest

from services.dag.read import externals
from tests.support.dag_world import DagWorld

EXTERNALS = "/v1/namespaces/default/externals"


async def waits(world: DagWorld, **query: Any) -> Any:
    answer = await world.http.get(EXTERNALS, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def told(world: DagWorld) -> list[tuple[str, str]]:
    return [(each["dag"], each["node"]) for each in (await waits(world))["items"]]


async def test_a_node_that_nothing_but_externals_keeps_is_found_with_what_is_behind_it(world: DagWorld) -> None:
    nodes = [
        {"key": "a"},
        {"key": "gate", "upstream": ["a"], "external": ["approval", "funds"]},
        {"key": "below", "upstream": ["gate"]},
    ]
    dag = await world.create(nodes, name="release", key="r7")
    await world.settle()
    assert await told(world) == [], "it waits for a"
    world.queue.ack("a")
    await world.settle()
    [found] = (await waits(world))["items"]
    assert found == {
        "dag": dag,
        "dag_name": "release",
        "dag_key": "r7",
        "node": "gate",
        "external": "approval",
        "more": 1,
        "since": (await world.node(dag, "a"))["finished_at"],
        "blocked": 2,
    }
    await world.verb(dag, "resolve", {"external": [{"node": "gate", "name": "approval"}]})
    [found] = (await waits(world))["items"]
    assert (found["external"], found["more"]) == ("funds", 0)
    await world.verb(dag, "resolve", {"external": [{"node": "gate", "name": "funds"}]})
    assert await told(world) == []


async def test_what_is_held_paused_over_or_another_tenants_is_not_told(world: DagWorld) -> None:
    gate = [{"key": "gate", "external": ["approval"]}]
    held, paused, over, kept = [await world.create(gate, hold=hold) for hold in (True, False, False, False)]
    await world.verb(paused, "pause")
    await world.verb(over, "cancel", expect=202)
    await world.settle()
    assert await told(world) == [(kept, "gate")]
    other = await world.http.get(EXTERNALS.replace("default", "other"))
    assert other.json() == {"items": [], "next_cursor": None}
    await world.verb(held, "release")
    await world.verb(paused, "resume")
    assert await told(world) == sorted((dag, "gate") for dag in (held, paused, kept))


async def test_a_failed_external_that_is_tried_again_waits_since_then(world: DagWorld) -> None:
    dag = await world.create([{"key": "gate", "external": ["approval"]}])
    await world.verb(dag, "resolve", {"external": [{"node": "gate", "name": "approval", "failed": True}]})
    await world.settle()
    assert await told(world) == []
    await world.verb(dag, "retry")
    await world.settle()
    [found] = (await waits(world))["items"]
    assert found["since"] > (await world.node(dag, "gate"))["created_at"]


async def test_pages_go_on_over_shards_and_over_dags_that_wait_for_nothing(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(externals, "_DAGS_MAX", 2)
    gate = [{"key": "gate", "external": ["approval"]}]
    made = [await world.create(gate) for _ in range(9)]
    for dag in made[:4]:
        done = {"external": [{"node": "gate", "name": "approval"}]}
        await world.verb(dag, "resolve", done)
    seen: list[str] = []
    cursor = None
    for _ in range(20):
        page = await waits(world, limit=1, **({"cursor": cursor} if cursor else {}))
        assert len(page["items"]) <= 1
        seen += [each["dag"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(made[4:])
    assert (await world.http.get(EXTERNALS, params={"cursor": "x"})).status_code == 422


async def test_behind_very_many_upstreams_it_is_not_looked_for_when_the_last_one_ended(world: DagWorld) -> None:
    ups = [f"a{n}" for n in range(4)]
    dag = await world.create(
        [*({"key": key} for key in ups), {"key": "gate", "upstream": ups, "external": ["approval"]}]
    )
    await world.settle()
    for key in ups:
        world.queue.ack(key)
    await world.settle()
    world.duties.externals._upstreams_max = 3
    [found] = (await waits(world))["items"]
    assert (found["dag"], found["since"]) == (dag, None)
