"""Scenes of DAGs: several verbs on a few nodes in their order, to which a world would hardly come by chance.

A scene has its DAG, and what comes of it, for itself while it goes on; all else happens meanwhile as ever. Time
stands still, so it judges by the order of its own calls. Afterwards the DAG is like any other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

from tests.worlds.control_verbs import steer
from tests.worlds.dag_facts import Dag
from tests.worlds.dag_verbs import expand_by, make
from tests.worlds.facts import Delivery
from tests.worlds.faults import is_inside
from tests.worlds.queue_verbs import say, take
from tests.worlds.registry import verb
from tests.worlds.world_names import NAMESPACES, SCENE_TOPIC

_ROUNDS_MAX = 6
_TIMES = 3  # where an answer is lost, or a process dies


class _Otherwise(Exception):
    """An answer was lost, a process died, or a quota refused: the scene cannot go on."""


class _Scene:
    def __init__(self, world: Any, rng: Random) -> None:
        namespace = rng.choice(NAMESPACES)
        name = f"{namespace}/d{world.serial()}"
        self._world, self._rng = world, rng
        self._held: dict[str, Delivery] = {}
        self.dag = Dag(name, namespace, {"name": name, "nodes": [], "key": name}, world.now_s)

    def spec(self, *upstream: str, **given: Any) -> dict[str, Any]:
        key = f"n{self._world.serial()}"
        payload = {"tag": f"{self.dag.name}/{key}", "node": True}
        return {"key": key, "topic": SCENE_TOPIC, "payload": payload, "upstream": list(upstream), **given}

    async def create(self, *specs: dict[str, Any]) -> None:
        self.dag.body["nodes"] = list(specs)
        for _ in range(_TIMES):
            await make(self._world, self._rng, self.dag)
            if self.dag.id is not None:
                return
        raise _Otherwise("it is not made")

    async def steer(self, path: str, keys: tuple[str, ...] = (), **body: Any) -> None:
        answer = await steer(self._world, self._rng, self.dag, path, body, keys)
        if answer.known != "ok":
            raise _Otherwise(f"{path}: {answer}")

    async def retry(self, how: str, key: str) -> None:
        """When all is done that was begun: until then it may be refused."""
        await self._settle()
        await self.steer("retry", (key,), **{how: [key]})
        await self._settle()

    async def expand(self, key: str, *specs: dict[str, Any]) -> None:
        """A node that runs has these children from now on."""
        await self._hold(key)
        for _ in range(_TIMES):
            answer = await expand_by(self._world, self._rng, self.dag, {"node": key, "nodes": list(specs)})
            if answer.known == "ok":
                return
        raise _Otherwise(f"expand: {answer}")

    async def ack(self, key: str) -> None:
        await self._end(key, "ack", "acked", {"output": {"by": key}})

    async def fail(self, key: str) -> None:
        await self._end(key, "nack", "dead", {"final": True})

    async def _end(self, key: str, verb_: str, status: str, given: dict[str, Any]) -> None:
        held = await self._hold(key)
        await say(self._world, self._rng, held.namespace, verb_, [(held, held.token, given)])
        word = self._world.history.words[held.id][-1]
        if word.status != status:
            raise _Otherwise(f"{verb_} of {key}: {word}")
        del self._held[key]

    async def _hold(self, key: str) -> Delivery:
        """What is said of it next is said by its holder."""
        for _ in range(_TIMES):
            if key not in self._held:
                await self._settle()
                await self._take()
        if key not in self._held:
            raise _Otherwise(f"{key} does not come")
        return self._held[key]

    async def _take(self) -> None:
        namespace = self.dag.namespace
        for one in await take(self._world, self._rng, namespace, 10, chosen=[SCENE_TOPIC], wait_s=0.0):
            if one.dag is not None and one.dag["id"] == self.dag.id:
                self._world.held.remove(one)  # nobody else says anything of it
                self._held[one.dag["node"]] = one

    async def _settle(self) -> None:
        """All that follows from what was said is done."""
        stage = self._world.stage
        for _ in range(_ROUNDS_MAX):
            done = 0
            for process in list(stage.dags):
                for name in sorted(process.duties()):
                    done += (await stage.step(process, name))[0]
            if not done:
                return

    async def waits(self, key: str, child: str) -> None:
        """A node does not run, as that child has not ended."""
        await self._settle()
        await self._take()
        if came := self._held.get(key):
            self._world.fault(f"{key} of {self.dag.name} ({self.dag.id}) came while {child} runs: {came}")

    def end(self) -> None:
        """It is like any other from now on, and so is what is held of it."""
        self._world.dags.new(self.dag)
        self._world.held += self._held.values()


@asynccontextmanager
async def _scene(world: Any, rng: Random) -> AsyncIterator[_Scene]:
    scene = _Scene(world, rng)
    try:
        yield scene
    except _Otherwise as why:
        world.note(f"the scene of {scene.dag.name} goes otherwise: {why}")
    else:
        world.history.counts["scenes of expansions"] += 1
    finally:
        scene.end()


@verb(1, is_inside, since=8)
async def expand_beside_the_ended(world: Any, rng: Random) -> None:
    """What waited for a node and has ended waits for the node's children, too, once it is retried."""
    async with _scene(world, rng) as scene:
        by_external = rng.random() < 0.5
        m, child = scene.spec(), scene.spec()
        above = m["key"]
        w = scene.spec(above, trigger="all_done", **({"external": ["x"]} if by_external else {}))
        waiter = w["key"]
        await scene.create(m, w)
        if by_external:
            await scene.steer("resolve", external=[{"node": waiter, "name": "x", "failed": True}])
        else:
            await scene.fail(above)
            await scene.ack(waiter)
            await scene.retry("nodes", above)
        await scene.expand(above, child)
        await scene.retry("from", waiter)
        if by_external:
            await scene.steer("resolve", external=[{"node": waiter, "name": "x", "data": "again"}])
        await scene.ack(above)
        await scene.waits(waiter, child["key"])


@verb(1, is_inside, since=8)
async def adopt_who_has_expanded(world: Any, rng: Random) -> None:
    """A child that is adopted brings its own children, however deep: what waits for the node waits for them."""
    async with _scene(world, rng) as scene:
        m, line = scene.spec(), [scene.spec() for _ in range(rng.choice((2, 2, 3)))]
        above = m["key"]
        waiter = scene.spec(above, trigger=rng.choice(("all_succeeded", "all_done", "none_failed")))
        await scene.create(m, waiter, line[0])
        for one, child in pairwise(line):
            await scene.expand(one["key"], child)
        ended = rng.randint(0, len(line) - 1)  # before they are adopted
        for one in line[:ended]:
            await scene.ack(one["key"])
        await scene.expand(above, line[0])
        for one in (m, *line[ended:-1]):
            await scene.ack(one["key"])
        await scene.waits(waiter["key"], line[-1]["key"])
