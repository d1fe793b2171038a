"""Retries against what else goes on, their statements in every order: steps of large ones, keeping, sub-DAGs."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from services.dag.model import Send
from tests.support.dag_scene import Scene, race
from tests.support.interleave import Actor

JOIN: list[dict[str, Any]] = [
    {"key": "bad"},
    {"key": "slow"},
    {"key": "join", "upstream": ["bad", "slow"], "trigger": "all_done"},
    {"key": "below", "upstream": ["bad"]},
]


@contextmanager
def settings(scene: Scene, **changed: Any) -> Iterator[None]:
    """Every process has these settings."""
    worlds = [scene.world, *(actor.process for actor in scene.actors)]
    before = {name: getattr(scene.world.settings, name) for name in changed}
    try:
        for world in worlds:
            world.settings.__dict__.update(changed)
        yield
    finally:
        for world in worlds:
            world.settings.__dict__.update(before)


def large(scene: Scene) -> Any:
    """Every retry goes in steps of one node."""
    return settings(scene, retry_at_once_nodes_max=0, retry_step_nodes=1, retry_step_edges=1)


def dies(scene: Scene, key: str) -> Callable[[], Awaitable[None]]:
    async def die() -> None:
        scene.world.queue.die(key)

    return die


def begun(scene: Scene, steps: int) -> Callable[[], Awaitable[None]]:
    """A retry has come so far."""

    async def begin() -> None:
        await scene.world.verb(scene.dag, "retry")
        for _ in range(steps):
            await scene.walk(scene.actors[0])

    return begin


@pytest.mark.parametrize("steps", [0, 4])
async def test_a_node_ends_while_others_are_reopened(scene: Scene, steps: int) -> None:
    """Its end is counted once, where it is counted anew and where it is not."""
    with large(scene):
        await race(
            scene,
            JOIN,
            (scene.walk, scene.ends("slow")),
            {
                (None, 1): (
                    {"bad": "released", "slow": "succeeded", "join": "blocked", "below": "blocked"},
                    "succeeded",
                )
            },
            before=dies(scene, "bad"),
            acked=["slow"],
            just_before=begun(scene, steps),
        )


async def test_two_reopen_the_same_nodes(scene: Scene) -> None:
    with large(scene):
        await race(
            scene,
            {"a": [], "b": ["a"], "c": ["b"]},
            (scene.walk, scene.walk),
            {(None, None): ({"a": "released", "b": "blocked", "c": "blocked"}, "succeeded")},
            before=dies(scene, "a"),
            just_before=begun(scene, 1),
            then=lambda: _is_of_generation(scene, "c", 2),
        )


async def _is_of_generation(scene: Scene, key: str, generation: int) -> None:
    assert (await scene.world.node(scene.dag, key))["generation"] == generation


async def test_a_dag_is_cancelled_while_nodes_are_reopened(scene: Scene) -> None:
    with large(scene):
        await race(
            scene,
            {"a": [], "b": ["a"], "c": ["b"]},
            (scene.walk, scene.posts("cancel")),
            {(None, 202): ({"a": "cancelled", "b": "skipped", "c": "skipped"}, "cancelled")},
            before=dies(scene, "a"),
            just_before=begun(scene, 1),
            also=[({"a": "cancelled", "b": "cancelled", "c": "skipped"}, "cancelled")],
        )


async def test_a_node_is_added_while_its_upstream_is_reopened(scene: Scene) -> None:
    with large(scene):
        await race(
            scene,
            {"a": [], "b": ["a"]},
            (scene.walk, scene.adds({"new": ["b"]})),
            {(None, 201): ({"a": "released", "b": "blocked", "new": "blocked"}, "succeeded")},
            before=dies(scene, "a"),
            just_before=begun(scene, 2),
            interruptions_max=1,
        )


# Keeping


async def keep(actor: Actor) -> None:
    """One look of retention."""
    await actor.process.loops.retention.step(actor.process.shard)


def ended_last(scene: Scene, *, kept: bool) -> Callable[[], Awaitable[None]]:
    """Retention has met all DAGs but this one, or with `kept` also that."""

    async def begin() -> None:
        await scene.watcher.execute("DELETE FROM kept")
        await scene.watcher.execute(
            "UPDATE retention_mark SET finished_at = d.finished_at - interval '1 us' FROM dag d WHERE d.id = $1",
            scene.dag,
        )
        while kept and await scene.world.loops.retention.step(scene.world.shard):
            pass

    return begin


@pytest.mark.parametrize("kept", [False, True])
async def test_an_ended_dag_is_retried_while_it_is_kept(scene: Scene, kept: bool) -> None:
    """Its rows are where the retry looks for them, or are brought back, all of them."""
    with settings(scene, ended_dag_grace_s=0.0, keep_rows_max=3):
        await race(
            scene,
            {"a": [], "b": ["a"]},
            (keep, scene.posts("retry")),
            {(None, 200): ({"a": "released", "b": "blocked"}, "succeeded")},
            before=dies(scene, "a"),
            just_before=ended_last(scene, kept=kept),
            interruptions_max=1,
        )


async def test_two_bring_back_a_kept_dag_and_one_retries_it(scene: Scene) -> None:
    with settings(scene, ended_dag_grace_s=0.0, keep_rows_max=3):
        await race(
            scene,
            {"a": [], "b": ["a"]},
            (scene.posts("retry"), scene.posts("resolve", {"external": [{"node": "b", "name": "x"}]})),
            {(200, 200): ({"a": "released", "b": "blocked"}, "succeeded")},
            before=dies(scene, "a"),
            just_before=ended_last(scene, kept=True),
            interruptions_max=1,
        )


# Sub-DAGs


class Child:
    """A DAG that ran in the place of the node `mid`, and whose end its parent is still to be told."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._report: Send | None = None

    async def made(self) -> None:
        spec = {"key": "mid", "dag": {"nodes": [{"key": "x", "topic": "work"}]}}
        await self._scene.world.call("POST", f"/{self._scene.dag}/nodes", {"nodes": [spec]}, expect=201)
        await self._scene.world.verb(self._scene.dag, "close")

    async def failed(self) -> None:
        await self._scene.drain(self._scene.actors[0])
        [row] = await self._scene.watcher.fetch(
            "SELECT node_no, generation, item_id::text FROM outbox WHERE action = 'report'"
        )
        self._report = Send(row["node_no"], row["generation"], "report", row["item_id"], "default")

    async def reports(self, actor: Actor) -> None:
        assert self._report is not None
        await actor.process.duties.sub_dags.carry(actor.process.shard, self._report)


async def test_a_node_is_retried_while_the_end_of_its_dag_is_told(scene: Scene) -> None:
    """The end of the first run is no end of the second."""
    child = Child(scene)
    await race(
        scene,
        None,
        (child.reports, scene.posts("retry")),
        {
            (None, 200): ({"mid": "released"}, "succeeded"),
            (None, 409): ({"mid": "failed"}, "failed"),
        },
        before=child.made,
        died=["x"],
        just_before=child.failed,
        open=True,
    )


async def test_all_runs_again_while_the_end_of_a_nodes_dag_is_told(scene: Scene) -> None:
    child = Child(scene)
    await race(
        scene,
        None,
        (child.reports, scene.posts("retry", {"all": True})),
        {(None, 200): ({"mid": "released"}, "succeeded")},
        before=child.made,
        died=["x"],
        just_before=child.failed,
        then=lambda: _is_of_generation(scene, "mid", 2),
        open=True,
    )
