"""What controls a DAG against what goes on in it, their statements in every order: as if one had come first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from services.dag.model import Send
from tests.support.dag_scene import Scene, race
from tests.support.interleave import Actor


async def test_a_dag_is_cancelled_while_a_node_ends(scene: Scene) -> None:
    """The node's end wins, and nothing below it comes out any more."""
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("cancel"), scene.drain),
        {(202, None): ({"a": "succeeded", "b": "cancelled"}, "cancelled")},
        acked=["a"],
    )


async def test_a_dag_is_cancelled_while_its_last_node_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.posts("cancel"), scene.drain),
        {
            (202, None): ({"a": "succeeded"}, "cancelled"),
            (200, None): ({"a": "succeeded"}, "succeeded"),
        },
        acked=["a"],
    )


async def test_a_dag_is_cancelled_while_its_hold_is_lifted(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("cancel"), scene.posts("release")),
        {(202, 200): ({"a": "cancelled", "b": "cancelled"}, "cancelled")},
        hold=True,
    )


async def test_a_dag_is_cancelled_while_a_node_is_added(scene: Scene) -> None:
    """Nodes that were taken are cancelled with the others, whichever half of the add came first."""
    await race(
        scene,
        {"a": []},
        (scene.posts("cancel"), scene.adds({"d": ["a"]})),
        {
            (202, 201): ({"a": "cancelled", "d": "cancelled"}, "cancelled"),
            (202, 409): ({"a": "cancelled"}, "cancelled"),
        },
        also=[({"a": "cancelled", "d": "cancelled"}, "cancelled")],
    )


async def test_a_dag_is_cancelled_while_its_last_node_ends_and_it_cleans_up(scene: Scene) -> None:
    """Cleanup runs in any case, and what depends on the end agrees with the end."""
    kinds = ("always", "succeeded", "cancelled")
    nodes = [{"key": "a"}, *({"key": kind, "run_on": kind} for kind in kinds)]
    ended = {"a": "succeeded", "always": "released"}
    await race(
        scene,
        nodes,
        (scene.posts("cancel"), scene.drain),
        {
            (202, None): (ended | {"succeeded": "skipped", "cancelled": "released"}, "cancelled"),
        },
        also=[(ended | {"succeeded": "released", "cancelled": "skipped"}, "succeeded")],
        acked=["a"],
    )


async def test_a_hold_is_lifted_while_a_node_is_skipped(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"], "c": []},
        (scene.posts("release"), scene.posts("skip", {"nodes": ["a"]})),
        {
            (200, 200): ({"a": "skipped", "b": "skipped", "c": "released"}, "succeeded"),
            (200, 409): ({"a": "released", "b": "blocked", "c": "released"}, "succeeded"),
        },
        hold=True,
    )


async def test_a_node_is_skipped_while_it_is_released(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"], "c": ["b"]},
        (scene.posts("skip", {"nodes": ["b"]}), scene.drain),
        {
            (200, None): ({"a": "succeeded", "b": "skipped", "c": "skipped"}, "succeeded"),
            (409, None): ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded"),
        },
        acked=["a"],
    )


async def test_a_dag_is_resumed_while_an_upstream_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("resume"), scene.drain),
        {(200, None): ({"a": "succeeded", "b": "released"}, "succeeded")},
        before=lambda: scene.world.verb(scene.dag, "pause"),
        acked=["a"],
    )


async def test_a_dag_is_paused_while_an_upstream_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("pause"), scene.drain),
        {(200, None): ({"a": "succeeded", "b": "blocked"}, "succeeded")},
        also=[({"a": "succeeded", "b": "released"}, "succeeded")],
        then=lambda: scene.world.verb(scene.dag, "resume"),
        acked=["a"],
    )


async def test_a_dag_is_closed_while_its_last_node_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.posts("close"), scene.drain),
        {(200, None): ({"a": "succeeded"}, "succeeded")},
        acked=["a"],
        open=True,
    )


async def test_a_deadline_passes_while_a_node_ends(scene: Scene) -> None:
    async def passed() -> None:
        await scene.watcher.execute(
            "UPDATE dag SET deadline_at = shard_now() - interval '1 s' WHERE id = $1", scene.dag
        )

    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.sweep, scene.drain),
        {(None, None): ({"a": "succeeded", "b": "cancelled"}, "failed")},
        before=passed,
        acked=["a"],
        deadline_s=3600,
    )


async def test_one_branch_fails_the_dag_while_another_goes_on(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (scene.ends("a", "failed"), scene.ends("b")),
        {(1, 1): ({"a": "failed", "b": "succeeded", "c": "cancelled"}, "failed")},
        acked=["b"],
        died=["a"],
        on_failure="cancel",
    )


async def test_a_node_is_cancelled_while_it_ends(scene: Scene) -> None:
    """Its end wins: the queue has taken its ack."""
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("nodes/cancel", {"nodes": ["a"]}), scene.drain),
        {
            (202, None): ({"a": "succeeded", "b": "released"}, "succeeded"),
            (200, None): ({"a": "succeeded", "b": "released"}, "succeeded"),
        },
        acked=["a"],
    )


async def test_a_node_is_cancelled_while_it_is_released(scene: Scene) -> None:
    cancelled = {"a": "succeeded", "b": "cancelled", "c": "skipped"}
    await race(
        scene,
        {"a": [], "b": ["a"], "c": ["b"]},
        (scene.posts("nodes/cancel", {"nodes": ["b"]}), scene.drain),
        {(200, None): (cancelled, "succeeded"), (202, None): (cancelled, "succeeded")},
        acked=["a"],
    )


async def test_a_node_is_retried_while_its_old_generation_ends_again(scene: Scene) -> None:
    async def failed() -> None:
        scene.world.queue.die("a")

    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("retry"), scene.ends("a")),
        {(200, 0): ({"a": "released", "b": "blocked"}, "succeeded")},
        before=failed,
    )


async def test_a_node_is_retried_while_another_upstream_of_its_child_ends(scene: Scene) -> None:
    """What was counted at the child is counted anew, and the other's end is not lost."""

    async def failed() -> None:
        scene.world.queue.die("bad")

    await race(
        scene,
        [{"key": "bad"}, {"key": "slow"}, {"key": "join", "upstream": ["bad", "slow"], "trigger": "all_done"}],
        (scene.posts("retry"), scene.ends("slow")),
        {(200, 1): ({"bad": "released", "slow": "succeeded", "join": "blocked"}, "succeeded")},
        before=failed,
        acked=["slow"],
        also=[({"bad": "released", "slow": "succeeded", "join": "released"}, "succeeded")],
    )


async def test_two_retry_and_one_generation_begins(scene: Scene) -> None:
    async def failed() -> None:
        scene.world.queue.die("a")

    states = {"a": "released", "b": "blocked"}
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("retry"), scene.posts("retry")),
        {(200, 409): (states, "succeeded"), (409, 200): (states, "succeeded")},
        before=failed,
        then=lambda: _is_of_generation(scene, "a", 2),
    )


async def _is_of_generation(scene: Scene, key: str, generation: int) -> None:
    assert (await scene.world.node(scene.dag, key))["generation"] == generation


async def test_all_runs_again_while_a_cancel_of_the_old_generation_is_confirmed(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.posts("retry", {"all": True}), scene.confirms("a", 1)),
        {(200, None): ({"a": "released", "b": "blocked"}, "succeeded")},
        then=lambda: _is_of_generation(scene, "a", 2),
    )


async def test_a_lost_item_is_made_anew_while_its_node_is_cancelled(scene: Scene) -> None:
    async def renew(actor: Actor) -> None:
        [[no, item_id]] = await scene.rows_of("a")
        send = Send(no, 1, "enqueue", item_id, "default")
        await actor.process.duties.completer.renew(actor.process.shard, send)

    cancelled = {"a": "cancelled", "b": "skipped"}
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (renew, scene.posts("nodes/cancel", {"nodes": ["a"]})),
        {(None, 202): (cancelled, "succeeded")},
    )


@contextmanager
def few_at_a_time(scene: Scene) -> Iterator[None]:
    """Every process flips one edge in a step."""
    worlds = [scene.world, *(actor.process for actor in scene.actors)]
    for world in worlds:
        world.settings.__dict__["edges_per_step_max"] = 1
    try:
        yield
    finally:
        for world in worlds:
            world.settings.__dict__["edges_per_step_max"] = 1_000


async def test_a_fan_out_is_walked_while_its_node_is_retried(scene: Scene) -> None:
    """The walk stops where the node has moved on; no child is left skipped, or counted for the old end."""

    async def failed() -> None:
        scene.world.queue.die("a")
        await scene.drain(scene.actors[0])
        assert await scene.watcher.fetchval("SELECT count(*) FROM spread") > 0

    children: dict[str, Any] = {f"c{i}": ["a"] for i in range(3)}
    with few_at_a_time(scene):
        await race(
            scene,
            {"a": [], **children},
            (scene.posts("retry"), scene.walk),
            {(200, None): ({"a": "released", **dict.fromkeys(children, "blocked")}, "succeeded")},
            just_before=failed,
        )


async def test_two_walk_one_fan_out(scene: Scene) -> None:
    async def ended() -> None:
        scene.world.queue.ack("a")
        await scene.drain(scene.actors[0])

    children: dict[str, Any] = {f"c{i}": ["a"] for i in range(3)}
    with few_at_a_time(scene):
        await race(
            scene,
            {"a": [], **children},
            (scene.walk, scene.walk),
            {(None, None): ({"a": "succeeded", **dict.fromkeys(children, "released")}, "succeeded")},
            just_before=ended,
        )
