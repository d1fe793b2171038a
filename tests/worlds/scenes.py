"""What scenes of DAGs are made of: several verbs on a few nodes in their order, to which a world would hardly come
by chance.

A scene has its DAG, and what comes of it, for itself while it goes on; all else happens meanwhile as ever. Time
stands still within a round, so it judges by the order of its own calls; what needs time goes on in a later round.
Afterwards the DAG is like any other.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any

from tests.worlds.control_verbs import find_sub, steer
from tests.worlds.dag_facts import Dag, Edge
from tests.worlds.dag_verbs import expand_by, make
from tests.worlds.facts import Delivery
from tests.worlds.queue_verbs import Said, say, take
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES, PLAY_TOPICS, SCENE_TOPIC

_ROUNDS_MAX = 6
_TIMES = 3  # where an answer is lost, or a process dies


class Otherwise(Exception):
    """An answer was lost, a process died, or a quota refused: the scene cannot go on."""


@contextmanager
def topic_of_its_own(world: Any) -> Iterator[str]:
    """A topic that no other scene has meanwhile, if there is one; what the last one left there may come."""
    free = [topic for topic in PLAY_TOPICS if topic not in world.on_stage] or PLAY_TOPICS
    topic = free[world.serial() % len(free)]
    world.on_stage.add(topic)
    try:
        yield topic
    finally:
        world.on_stage.discard(topic)


async def settle(world: Any) -> None:
    """All that follows for DAGs from what was said is done."""
    for _ in range(_ROUNDS_MAX):
        done = 0
        for process in list(world.stage.dags):
            for name in sorted(process.duties()):
                done += (await world.stage.step(process, name))[0]
        if not done:
            return


class Scene:
    """One DAG, and who works on it."""

    def __init__(self, world: Any, rng: Random, topic: str = SCENE_TOPIC, namespace: str | None = None) -> None:
        namespace = namespace or rng.choice(NAMESPACES)
        name = f"{namespace}/d{world.serial()}"
        self._world, self._rng, self.topic = world, rng, topic
        self._held: dict[str, Delivery] = {}
        self._below: dict[str, list[tuple[str, Answer, tuple[str, ...]]]] = {}
        self.goes_on = False
        self.dag = Dag(name, namespace, {"name": name, "nodes": [], "key": name}, world.now_s)

    def spec(self, *upstream: str, **given: Any) -> dict[str, Any]:
        key = f"n{self._world.serial()}"
        payload = {"tag": f"{self.dag.name}/{key}", "node": True}
        return {"key": key, "topic": self.topic, "payload": payload, "upstream": list(upstream), **given}

    async def create(self, *specs: dict[str, Any]) -> None:
        self.dag.body["nodes"] = list(specs)
        for _ in range(_TIMES):
            await make(self._world, self._rng, self.dag)
            if self.dag.id is not None:
                return
        raise Otherwise("it is not made")

    async def steer(self, path: str, keys: tuple[str, ...] = (), **body: Any) -> Answer:
        answer: Answer = await self.ask(path, keys, **body)
        if answer.known != "ok":
            raise Otherwise(f"{path}: {answer}")
        return answer

    async def ask(self, path: str, keys: tuple[str, ...] = (), **body: Any) -> Answer:
        """As `steer`, whatever comes of it."""
        answer: Answer = await steer(self._world, self._rng, self.dag, path, body, keys)
        return answer

    async def shown(self, **of: str) -> dict[str, Any]:
        """The DAG, or a node of it, as it is now."""
        path = f"/dags/{self.dag.id}/node" if of else f"/dags/{self.dag.id}"
        answer = await self._world.dag(self._rng, self.dag.namespace, path, method="GET", **of)
        if answer.known != "ok":
            raise Otherwise(f"{path}: {answer}")
        return dict(answer.body)

    async def link(self, at: Any, up: str, down: str) -> Answer:
        """An edge, added by one process."""
        body = {"dependencies": [{"upstream": up, "downstream": down}]}
        path = f"/dags/{self.dag.id}/dependencies"
        answer: Answer = await self._world.call(self._rng, at, self.dag.namespace, "POST", path, body, {})
        return answer

    def linked(self, up: str, down: str, answer: Answer) -> None:
        """An edge was taken."""
        self.dag.edges.append(Edge(up, down, answer.done))

    async def retry(self, how: str, key: str) -> None:
        """When all is done that was begun: until then it may be refused."""
        await self.settle()
        await self.steer("retry", (key,), **{how: [key]})
        await self.settle()

    async def below(self, key: str) -> str:
        """The id of the DAG that runs in the place of a node; what comes of that is the scene's, too."""
        await self.settle()
        found = (await self.shown(key=key))["dag"]
        if found is None:
            raise Otherwise(f"nothing runs in the place of {key}")
        self._below.setdefault(found, [])
        return str(found)

    async def steer_below(self, dag_id: str, path: str, keys: tuple[str, ...], **body: Any) -> None:
        answer = await self._world.dag(self._rng, self.dag.namespace, f"/dags/{dag_id}/{path}", body)
        self._below[dag_id].append((path, answer, keys))
        if answer.known != "ok":
            raise Otherwise(f"{path}: {answer}")

    async def expand(self, key: str, *specs: dict[str, Any]) -> None:
        """A node that runs has these children from now on."""
        await self.hold(key)
        for _ in range(_TIMES):
            answer = await expand_by(self._world, self._rng, self.dag, {"node": key, "nodes": list(specs)})
            if answer.known == "ok":
                return
        raise Otherwise(f"expand: {answer}")

    async def ack(self, key: str) -> None:
        await self._end(key, "ack", "acked", {"output": {"by": key}})

    async def ack_all(self, keys: list[str]) -> None:
        """In one call, whatever comes of it."""
        held = [self._held.pop(key) for key in keys if key in self._held]
        said: list[Said] = [(one, one.token, {"output": {"by": one.token[:8]}}) for one in held]
        await say(self._world, Random(self._rng.random()), self.dag.namespace, "ack", said)

    async def fail(self, key: str) -> None:
        await self._end(key, "nack", "dead", {"final": True})

    async def _end(self, key: str, verb_: str, status: str, given: dict[str, Any]) -> None:
        held = await self.hold(key)
        await say(self._world, self._rng, held.namespace, verb_, [(held, held.token, given)])
        word = self._world.history.words[held.id][-1]
        if word.status != status:
            raise Otherwise(f"{verb_} of {key}: {word}")
        del self._held[key]

    async def hold(self, key: str) -> Delivery:
        """What is said of it next is said by its holder."""
        for _ in range(_TIMES):
            if key not in self._held:
                await self.settle()
                await self.take()
        if key not in self._held:
            raise Otherwise(f"{key} does not come")
        return self._held[key]

    async def take(self, at: Any = None, wait_s: float = 0.0) -> None:
        """What there is of it, `at` a process or any."""
        namespace, rng = self.dag.namespace, self._rng if at is None else Random(self._rng.random())
        for one in await take(self._world, rng, namespace, 10, chosen=[self.topic], at=at, wait_s=wait_s):
            if one.dag is not None and (one.dag["id"] == self.dag.id or one.dag["id"] in self._below):
                self._world.held.remove(one)  # nobody else says anything of it
                self._held[one.dag["node"]] = one

    async def settle(self) -> None:
        """All that follows from what was said is done."""
        await settle(self._world)

    async def do(self, duty: str, process: Any) -> None:
        """One duty of a process, of all shards."""
        for name in sorted(process.duties()):
            if name.partition(" ")[0] == duty:
                await self._world.stage.step(process, name)

    async def waits(self, key: str, child: str) -> None:
        """A node does not run, as that child has not ended."""
        await self.settle()
        await self.take()
        self.is_absent(key, f"{child} runs")

    def is_absent(self, key: str, why: str) -> None:
        if came := self._held.get(key):
            self.fault(f"{key} came while {why}: {came}")

    def fault(self, text: str) -> None:
        self._world.fault(f"{self.dag.name} ({self.dag.id}): {text}")

    def later(self, seconds: float, go_on: Callable[["Scene"], Awaitable[None]]) -> None:
        """It goes on in the next round, when so much time has passed."""
        self.goes_on = True
        if seconds:
            self._world.leaps.append(seconds)

        async def act(world: Any, rng: Random) -> None:
            self.goes_on, self._rng = False, rng
            async with _playing(world, self):
                await go_on(self)
                await self.make_known()

        self._world.appointments.append((act, self.end))

    async def make_known(self) -> None:
        """DAGs below it are like any other from now on."""
        while self._below:
            dag_id, acts = self._below.popitem()
            dag = await find_sub(self._world, self._rng, self.dag.namespace, dag_id)
            for path, answer, keys in acts if dag is not None else ():
                dag.act(path, answer, keys)

    def end(self) -> None:
        """It is like any other from now on, and so is what is held of it."""
        self._world.dags.new(self.dag)
        self._world.held += self._held.values()


@asynccontextmanager
async def scene(world: Any, rng: Random) -> AsyncIterator[Scene]:
    """One of those that began with edition 8, which share a topic."""
    made = Scene(world, rng)
    async with _playing(world, made):
        yield made


@asynccontextmanager
async def play_of_its_own(world: Any, rng: Random, namespace: str | None = None) -> AsyncIterator[Scene]:
    """One with a topic that no other scene has while this round goes on."""
    with topic_of_its_own(world) as topic:
        made = Scene(world, rng, topic, namespace)
        async with _playing(world, made):
            yield made
            await made.make_known()


@asynccontextmanager
async def _playing(world: Any, made: Scene) -> AsyncIterator[None]:
    try:
        yield
    except Otherwise as why:
        made.goes_on = False
        world.note(f"the scene of {made.dag.name} goes otherwise: {why}")
    else:
        world.history.counts["scenes of DAGs"] += 1
    finally:
        if not made.goes_on:
            made.end()
