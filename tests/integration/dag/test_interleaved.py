"""Two changes of one DAG, their statements in every order: as if one had come after the other."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from services.dag.model import Ending
from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Database
from tests.support.interleave import Actor, dag_actor_on, explore


@dataclass
class Scene:
    """Two slowed-down services, and an ordinary one that sets the scene and carries on afterwards."""

    world: DagWorld
    actors: list[Actor]
    watcher: Any
    dag: str = ""

    async def end(self, actor: Actor, key: str, state: Any = "succeeded") -> int:
        """A node's completion."""
        ending = Ending(self.dag, key, 1, state, 1, None, None, None)
        return int(await actor.process.duties.completer.apply(actor.process.shard, [ending]))

    async def post(self, actor: Actor, path: str, body: Any) -> int:
        response = await actor.process.http.post(f"{BASE}/{self.dag}/{path}", json=body)
        return int(response.status_code)

    async def link(self, actor: Actor, up: str, down: str) -> int:
        return await self.post(actor, "dependencies", {"dependencies": [{"upstream": up, "downstream": down}]})


@pytest.fixture
async def scene(world: DagWorld, dag_database: Database) -> AsyncIterator[Scene]:
    watcher = await world.connect()
    async with dag_actor_on(dag_database, world.queue) as a, dag_actor_on(dag_database, world.queue) as b:
        yield Scene(world, [a, b], watcher)
    await watcher.close()


Verb = Callable[[Actor], Awaitable[Any]]


async def race(
    scene: Scene, nodes: Any, verbs: tuple[Verb, Verb], allowed: dict[tuple[Any, Any], dict[str, str]]
) -> None:
    """Every order of two verbs ends in one of the allowed pairs of answers, with the nodes as that says."""

    async def begin() -> list[Any]:
        scene.dag = await scene.world.create(nodes)
        await scene.world.settle()
        return [lambda: verbs[0](scene.actors[0]), lambda: verbs[1](scene.actors[1])]

    async def check(results: list[Any]) -> None:
        assert tuple(results) in allowed, "these answers do not go together"
        await scene.world.sweep()
        assert await scene.world.states(scene.dag) == allowed[tuple(results)]
        await scene.world.audit()

    assert await explore(scene.watcher, scene.actors, begin, check) > 1


async def test_two_upstreams_end_and_their_child_is_released_once(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["a", "b"]},
        (lambda actor: scene.end(actor, "a"), lambda actor: scene.end(actor, "b")),
        {(1, 1): {"a": "succeeded", "b": "succeeded", "c": "released"}},
    )


async def test_an_edge_is_added_while_its_upstream_ends(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (lambda actor: scene.link(actor, "a", "c"), lambda actor: scene.end(actor, "a")),
        {(201, 1): {"a": "succeeded", "b": "released", "c": "blocked"}},
    )


async def test_an_edge_is_added_while_its_downstream_is_released(scene: Scene) -> None:
    await race(
        scene,
        {"a": [], "b": [], "c": ["b"]},
        (lambda actor: scene.link(actor, "a", "c"), lambda actor: scene.end(actor, "b")),
        {
            (201, 1): {"a": "released", "b": "succeeded", "c": "blocked"},
            (409, 1): {"a": "released", "b": "succeeded", "c": "released"},
        },
    )
