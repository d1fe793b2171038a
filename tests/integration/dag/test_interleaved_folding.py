"""An ack that goes on with its DAG in the queue's transaction, against all that changes the DAG, in every order.

What is told instead, since somebody else is at the DAG, comes to the same."""

from typing import Any

import pytest

from tests.support.dag_scene import Allowed, Outcome, Scene, race
from tests.support.dag_world import specs


def either(answer: Any, outcome: Outcome) -> Allowed:
    """The same nodes, whether the ack was folded or somebody else was at the DAG."""
    return {("folded", answer): outcome, ("told", answer): outcome}


async def test_two_upstreams_are_folded_and_their_child_is_released_once(scene: Scene) -> None:
    ended = ({"a": "succeeded", "b": "succeeded", "c": "released"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": [], "c": ["a", "b"]},
        (scene.folds("a"), scene.folds("b")),
        {("folded", "folded"): ended, ("folded", "told"): ended, ("told", "folded"): ended},
    )


async def test_one_upstream_is_folded_while_another_is_completed(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["a", "b"]},
        (scene.folds("a"), scene.ends("b")),
        either(1, ({"a": "succeeded", "b": "succeeded", "c": "released"}, "succeeded")),
        acked=["b"],
    )


async def test_one_upstream_is_folded_while_another_fails(scene: Scene) -> None:
    nodes: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}]
    triggers = ("all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed")
    nodes += [{"key": trigger, "upstream": ["a", "b"], "trigger": trigger} for trigger in triggers]
    ended = {"a": "succeeded", "b": "failed", "all_succeeded": "skipped", "none_failed": "skipped"}
    released = dict.fromkeys(("all_done", "any_succeeded", "any_failed"), "released")
    await race(
        scene,
        nodes,
        (scene.folds("a"), scene.ends("b", "failed")),
        either(1, (ended | released, "failed")),
        died=["b"],
    )


async def test_an_upstream_fails_by_its_item_while_another_is_folded(scene: Scene) -> None:
    ended = ({"a": "failed", "b": "succeeded", "c": "released", "d": "released"}, "failed")
    nodes: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}]
    nodes += [{"key": "c", "upstream": ["a", "b"], "trigger": "all_done"}]
    nodes += [{"key": "d", "upstream": ["a"], "trigger": "any_failed"}]
    await race(
        scene,
        nodes,
        (scene.folds("a", '"boom"'), scene.folds("b")),
        {("folded", "folded"): ended, ("folded", "told"): ended, ("told", "folded"): ended},
    )


async def test_an_edge_is_added_below_what_fails_by_its_item(scene: Scene) -> None:
    await race(
        scene,
        [{"key": "a"}, {"key": "b", "upstream": ["a"], "trigger": "all_done"}, {"key": "c", "external": ["x"]}],
        (scene.folds("a", "null"), scene.links("a", "c")),
        either(201, ({"a": "failed", "b": "released", "c": "skipped"}, "failed")),
    )


async def test_an_end_is_folded_while_it_is_applied_a_second_time(scene: Scene) -> None:
    """As by a completion that was written before the ack of a redelivered item."""
    ended = ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": ["a"], "c": ["b"]},
        (scene.folds("a"), scene.ends("a")),
        {("folded", 0): ended, ("told", 1): ended},
    )


async def test_an_edge_is_added_below_what_is_folded(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (scene.folds("a"), scene.links("a", "c")),
        either(201, ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")),
    )


async def test_an_edge_is_added_to_what_is_released(scene: Scene) -> None:
    waits = ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")
    goes = ({"a": "succeeded", "b": "released", "c": "released"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": [], "c": ["a"]},
        (scene.folds("a"), scene.links("b", "c")),
        {("folded", 409): goes, ("folded", 201): waits, ("told", 201): waits},
    )


async def test_a_node_is_added_below_what_is_folded(scene: Scene) -> None:
    ended = ({"a": "succeeded", "b": "released", "d": "released"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.folds("a"), scene.adds({"d": ["a"]})),
        either(201, ended),
    )


async def test_a_dag_is_paused(scene: Scene) -> None:
    kept = ({"a": "succeeded", "b": "blocked"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.folds("a"), scene.posts("pause")),
        {("folded", 200): ({"a": "succeeded", "b": "released"}, "succeeded"), ("told", 200): kept},
        then=lambda: scene.world.verb(scene.dag, "resume"),
    )


async def test_a_dag_is_resumed(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"], "c": ["b"]},
        (scene.folds("a"), scene.posts("resume")),
        either(200, ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")),
        just_before=lambda: scene.world.verb(scene.dag, "pause"),
    )


async def test_what_a_pause_kept_is_released(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a walk, a stretch of nodes at a time; one of them waits for what is folded too."""
    walked = {"a": "succeeded", "x": "succeeded", "b": "released", "c": "released"}

    async def pauses() -> None:
        await scene.world.verb(scene.dag, "pause")
        await acked(scene, "x")
        await scene.world.settle()

    async def resumes() -> None:
        """As of a DAG too large for the call itself to look at what it lets go."""
        with monkeypatch.context() as patch:
            patch.setitem(scene.world.settings.__dict__, "scan_nodes_max", 0)
            await scene.world.verb(scene.dag, "resume")

    await race(
        scene,
        {"a": [], "x": [], "b": ["x"], "c": ["a", "x"]},
        (scene.folds("a"), scene.walk),
        either(None, (walked, "succeeded")),
        before=pauses,
        just_before=resumes,
    )


async def test_what_a_hold_kept_is_released(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch at a time: what the first let go has ended before the next comes to what waits for it."""

    async def releases() -> None:
        with monkeypatch.context() as patch:
            patch.setitem(scene.world.settings.__dict__, "scan_nodes_max", 1)
            await scene.world.verb(scene.dag, "release")
        await scene.world.loops.relay.idle()

    await race(
        scene,
        {"a": [], "x": [], "b": ["a"], "c": ["a", "x"]},
        (scene.folds("a"), scene.walk),
        either(None, ({"a": "succeeded", "x": "released", "b": "released", "c": "blocked"}, "succeeded")),
        just_before=releases,
        hold=True,
    )


async def test_a_dag_is_cancelled(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.folds("a"), scene.posts("cancel")),
        either(202, ({"a": "succeeded", "b": "cancelled"}, "cancelled")),
    )


async def test_a_node_is_cancelled(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"], "c": []},
        (scene.folds("a"), scene.posts("nodes/cancel", {"nodes": ["b"]})),
        {
            ("folded", 200): ({"a": "succeeded", "b": "cancelled", "c": "released"}, "succeeded"),
            ("told", 200): ({"a": "succeeded", "b": "cancelled", "c": "released"}, "succeeded"),
            ("folded", 202): ({"a": "succeeded", "b": "cancelled", "c": "released"}, "succeeded"),
        },
    )


async def test_a_node_is_skipped(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": ["a"], "c": ["b"], "d": []},
        (scene.folds("a"), scene.posts("skip", {"nodes": ["b"]})),
        {
            ("folded", 409): ({"a": "succeeded", "b": "released", "c": "blocked", "d": "released"}, "succeeded"),
            ("folded", 200): ({"a": "succeeded", "b": "skipped", "c": "skipped", "d": "released"}, "succeeded"),
            ("told", 200): ({"a": "succeeded", "b": "skipped", "c": "skipped", "d": "released"}, "succeeded"),
        },
    )


async def test_an_external_is_resolved(scene: Scene) -> None:
    await race(
        scene,
        [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["go"]}, {"key": "c", "upstream": ["b"]}],
        (scene.folds("a"), scene.posts("resolve", {"external": [{"node": "b", "name": "go"}]})),
        either(200, ({"a": "succeeded", "b": "released", "c": "blocked"}, "succeeded")),
    )


async def test_an_external_fails(scene: Scene) -> None:
    resolved = {"external": [{"node": "b", "name": "go", "failed": True}]}
    await race(
        scene,
        [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["go"]}, {"key": "c"}],
        (scene.folds("a"), scene.posts("resolve", resolved)),
        either(200, ({"a": "succeeded", "b": "failed", "c": "released"}, "failed")),
    )


async def test_a_failed_neighbour_is_retried(scene: Scene) -> None:
    ended = ({"a": "succeeded", "x": "released", "b": "blocked", "c": "blocked"}, "succeeded")
    await race(
        scene,
        [{"key": "a"}, {"key": "x"}, {"key": "b", "upstream": ["a", "x"]}, {"key": "c", "upstream": ["b"]}],
        (scene.folds("a"), scene.posts("retry")),
        either(200, ended),
        before=lambda: died(scene, "x"),
    )


async def test_a_node_is_run_again_while_its_old_generation_is_folded(scene: Scene) -> None:
    """All of it, the item that is being acked included: its end counts if it comes first, and never twice."""
    again = ({"x": "released", "a": "blocked", "b": "blocked"}, "succeeded")
    await race(
        scene,
        {"x": [], "a": ["x"], "b": ["a"]},
        (scene.folds("a"), scene.posts("retry", {"all": True})),
        either(200, again),
        before=lambda: acked(scene, "x"),
    )


async def test_a_node_expands_itself(scene: Scene) -> None:
    """Its end counts below it only with its children's, if they came first; then it may not expand any more."""

    waits = ({"a": "succeeded", "k": "released", "b": "blocked"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": ["a"]},
        (scene.folds("a"), scene.posts("expand", {"node": "a", "nodes": specs({"k": []})})),
        {
            ("folded", 409): ({"a": "succeeded", "b": "released"}, "succeeded"),
            ("folded", 201): waits,
            ("told", 201): waits,
        },
    )


async def died(scene: Scene, key: str) -> None:
    scene.world.queue.die(key)


async def acked(scene: Scene, key: str) -> None:
    scene.world.queue.ack(key)


# From here on the DAG ends by what is folded, if it comes first.


async def test_a_dag_ends_while_a_node_is_added(scene: Scene) -> None:
    goes_on = ({"a": "succeeded", "d": "released"}, "succeeded")
    await race(
        scene,
        {"a": []},
        (scene.folds("a"), scene.adds({"d": ["a"]})),
        {("folded", 409): ({"a": "succeeded"}, "succeeded"), ("folded", 201): goes_on, ("told", 201): goes_on},
    )


async def test_a_dag_ends_by_the_later_of_two_acks(scene: Scene) -> None:
    ended = ({"a": "succeeded", "b": "succeeded"}, "succeeded")
    await race(
        scene,
        {"a": [], "b": []},
        (scene.folds("a"), scene.folds("b")),
        {("folded", "folded"): ended, ("folded", "told"): ended, ("told", "folded"): ended},
    )


async def test_a_dag_ends_while_a_completion_is_applied(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": []},
        (scene.folds("a"), scene.ends("b", "failed")),
        either(1, ({"a": "succeeded", "b": "failed"}, "failed")),
        died=["b"],
    )


async def test_a_dag_ends_while_it_is_paused(scene: Scene) -> None:
    ended = ({"a": "succeeded"}, "succeeded")
    await race(
        scene,
        {"a": []},
        (scene.folds("a"), scene.posts("pause")),
        either(200, ended),
    )


async def test_a_dag_ends_while_it_is_cancelled(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.folds("a"), scene.posts("cancel")),
        {
            ("folded", 200): ({"a": "succeeded"}, "succeeded"),
            ("told", 202): ({"a": "succeeded"}, "cancelled"),
        },
    )


async def test_an_open_dag_is_closed_while_its_last_node_is_folded(scene: Scene) -> None:
    await race(
        scene,
        {"a": []},
        (scene.folds("a"), scene.posts("close")),
        either(200, ({"a": "succeeded"}, "succeeded")),
        open=True,
    )


async def test_a_dag_ends_while_all_of_it_is_run_again(scene: Scene) -> None:
    again = ({"x": "released", "a": "blocked"}, "succeeded")
    await race(
        scene,
        {"x": [], "a": ["x"]},
        (scene.folds("a"), scene.posts("retry", {"all": True})),
        either(200, again),
        before=lambda: acked(scene, "x"),
    )
