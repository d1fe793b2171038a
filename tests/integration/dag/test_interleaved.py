"""What adds to a DAG against what changes it, their statements in every order: as if one had come first."""

from typing import Any

from tests.support.dag_scene import Scene, race
from tests.support.dag_world import BASE, specs
from tests.support.interleave import Actor, explore

GATED = [{"key": "gate", "external": ["go"]}]


async def test_two_upstreams_end_and_their_child_is_released_once(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["a", "b"]},
        (scene.ends("a"), scene.ends("b")),
        {(1, 1): ({"a": "succeeded", "b": "succeeded", "c": "released"}, "succeeded")},
        acked=["a", "b"],
    )


async def test_one_upstream_succeeds_while_another_fails(scene: Scene) -> None:
    nodes: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}]
    triggers = ("all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed")
    nodes += [{"key": trigger, "upstream": ["a", "b"], "trigger": trigger} for trigger in triggers]
    ended = {"a": "succeeded", "b": "failed", "all_succeeded": "skipped", "none_failed": "skipped"}
    released = dict.fromkeys(("all_done", "any_succeeded", "any_failed"), "released")
    await race(
        scene,
        nodes,
        (scene.ends("a"), scene.ends("b", "failed")),
        {(1, 1): (ended | released, "failed")},
        acked=["a"],
        died=["b"],
    )


async def test_an_edge_is_added_while_its_upstream_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (scene.links("a", "c"), scene.drain),
        {(201, None): ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")},
        acked=["a"],
    )


async def test_an_edge_is_added_while_its_upstream_fails(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (scene.links("a", "c"), scene.drain),
        {(201, None): ({"a": "failed", "b": "released", "c": "skipped"}, "failed")},
        died=["a"],
    )


async def test_an_edge_is_added_while_its_downstream_is_released(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (scene.links("a", "c"), scene.drain),
        {
            (201, None): ({"a": "released", "b": "succeeded", "c": "blocked"}, "succeeded"),
            (409, None): ({"a": "released", "b": "succeeded", "c": "released"}, "succeeded"),
        },
        acked=["b"],
    )


async def test_two_builders_close_a_cycle_and_one_is_refused(scene: Scene) -> None:
    waiting = {"gate": "blocked", "a": "blocked", "b": "blocked"}

    async def opened() -> None:
        await scene.world.verb(scene.dag, "resolve", {"external": [{"node": "gate", "name": "go"}]})

    await race(
        scene,
        [*GATED, {"key": "a", "upstream": ["gate"]}, {"key": "b", "upstream": ["gate"]}],
        (scene.links("a", "b"), scene.links("b", "a")),
        {(201, 422): (waiting, "succeeded"), (422, 201): (waiting, "succeeded")},
        then=opened,
    )


async def test_a_node_is_added_while_the_last_node_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.adds({"d": ["a"]}), scene.drain),
        {
            (201, None): ({"a": "succeeded", "d": "released"}, "succeeded"),
            (409, None): ({"a": "succeeded"}, "succeeded"),
        },
        acked=["a"],
    )


async def test_a_node_is_added_while_its_upstream_fails(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.adds({"d": ["a"], "e": ["d"]}), scene.drain),
        {(201, None): ({"a": "failed", "d": "skipped", "e": "skipped"}, "failed")},
        died=["a"],
        open=True,
        then=lambda: scene.world.verb(scene.dag, "close"),
    )


async def test_two_add_the_same_node_and_it_is_made_once(scene: Scene) -> None:
    adding = scene.adds({"d": ["a"], "e": ["d"]})
    await race(
        scene,
        {"a": []},
        (adding, adding),
        {(201, 201): ({"a": "released", "d": "blocked", "e": "blocked"}, "succeeded")},
        interruptions_max=1,
    )


async def test_two_add_different_nodes_under_one_key(scene: Scene) -> None:
    states = {"a": "released", "d": "blocked"}
    await race(
        scene,
        {"a": []},
        (scene.adds({"d": ["a"]}), scene.adds([{"key": "d", "upstream": ["a"], "payload": 1}])),
        {(201, 409): (states, "succeeded"), (409, 201): (states, "succeeded")},
        interruptions_max=1,
    )


async def test_an_external_is_resolved_while_it_is_declared(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (
            scene.adds([{"key": "x", "external": ["go"]}]),
            scene.posts("resolve", {"external": [{"node": "x", "name": "go"}]}),
        ),
        {(201, 200): ({"a": "released", "x": "released"}, "succeeded")},
    )


async def test_an_external_fails_while_it_is_declared(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (
            scene.adds([{"key": "x", "external": ["go", "on"]}, {"key": "y", "upstream": ["x"]}]),
            scene.posts("resolve", {"external": [{"node": "x", "name": "go", "failed": True}]}),
        ),
        {(201, 200): ({"a": "released", "x": "failed", "y": "skipped"}, "failed")},
    )


async def test_two_resolve_one_external_and_it_is_counted_once(scene: Scene) -> None:
    resolving = scene.posts("resolve", {"external": [{"node": "x", "name": "go"}]})
    await race(
        scene,
        [{"key": "x", "external": ["go", "on"]}],
        (resolving, resolving),
        {(200, 200): ({"x": "blocked"}, "succeeded")},
        then=lambda: scene.world.verb(scene.dag, "resolve", {"external": [{"node": "x", "name": "on"}]}),
    )


async def test_two_create_under_one_key_and_there_is_one_dag(scene: Scene) -> None:
    key = 0

    async def create(actor: Actor) -> tuple[int, str, int]:
        body = {"key": f"k{key}", "nodes": specs({"a": [], "b": ["a"]})}
        response = await actor.process.http.post(BASE, json=body)
        made = response.json()
        return response.status_code, made["id"], made["nodes"]["released"]

    async def begin() -> list[Any]:
        nonlocal key
        key += 1
        await scene.clear()
        return [lambda: create(scene.actors[0]), lambda: create(scene.actors[1])]

    async def check(results: list[Any]) -> None:
        assert sorted(status for status, _, _ in results) == [200, 201]
        assert results[0][1] == results[1][1], "each has a DAG of its own"
        scene.dag = results[0][1]
        assert {released for _, _, released in results} == {1}, "an answer came before its nodes were decided"
        assert await scene.world.states(scene.dag) == {"a": "released", "b": "blocked"}
        await scene.world.sweep()
        await scene.world.audit(scene.dag)
        assert await scene.carry_on() == "succeeded"

    assert await explore(scene.watcher, scene.actors, begin, check, interruptions_max=1) > 1


async def test_a_node_expands_itself_while_it_ends(scene: Scene) -> None:
    await race(
        scene,
        {"m": [], "w": ["m"]},
        (scene.posts("expand", {"node": "m", "nodes": specs({"c": []})}), scene.drain),
        {
            (201, None): ({"m": "succeeded", "c": "released", "w": "blocked"}, "succeeded"),
            (409, None): ({"m": "succeeded", "w": "released"}, "succeeded"),
        },
        acked=["m"],
    )


async def test_a_waiter_is_added_while_the_node_expands_itself(scene: Scene) -> None:
    """Whoever comes first, the waiter waits for the children."""
    await race(
        scene,
        {"m": []},
        (scene.posts("expand", {"node": "m", "nodes": specs({"c": []})}), scene.adds({"w": ["m"]})),
        {(201, 201): ({"m": "released", "c": "released", "w": "blocked"}, "succeeded")},
        then=lambda: _waits_for(scene, "w", {"m", "c"}),
    )


async def _waits_for(scene: Scene, key: str, ups: set[str]) -> None:
    assert set((await scene.world.node(scene.dag, key))["upstream"]) == ups


async def test_a_stopped_add_is_driven_on_by_two(scene: Scene) -> None:
    """One repeats the call, the other sweeps."""

    async def stopped() -> None:
        scene.world.queue.down = {"enqueue"}
        await scene.world.add(scene.dag, {"d": ["a"], "e": ["d"]}, expect=503)
        scene.world.queue.down = set()
        await scene.watcher.execute("UPDATE adding SET started_at = started_at - interval '1 h'")

    await race(
        scene,
        {"a": []},
        (scene.adds({"d": ["a"], "e": ["d"]}), scene.sweep),
        {(201, None): ({"a": "succeeded", "d": "released", "e": "blocked"}, "succeeded")},
        before=stopped,
        acked=["a"],
        interruptions_max=1,
    )
