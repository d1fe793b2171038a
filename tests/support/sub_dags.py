"""DAGs in the place of nodes, as tests make them and watch them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.dag.model import Dag, Retry, Send
from services.dag.run.subdag_retry import Above
from shared.errors import Unavailable
from tests.support.dag_world import DagWorld
from tests.support.databases import Databases
from tests.support.queue_fake import FakeQueue


@asynccontextmanager
async def two_shards(databases: Databases) -> AsyncIterator[DagWorld]:
    """A service on two shards; ends with an audit and with nothing left to be told."""
    database = await databases.create(queue_shards=1, dag_shards=2)
    made = DagWorld(database, FakeQueue(), subdag_depth_max=3)
    try:
        yield made
        await made.audit()
        assert await made.rows("SELECT * FROM outbox") == []
    finally:
        await made.close()
        await databases.drop(database)


def sub(key: str, nodes: dict[str, list[str]], *upstream: str, **more: Any) -> dict[str, Any]:
    """A request node with a DAG of plain nodes."""
    inner = [{"key": k, "topic": "work"} | ({"upstream": ups} if ups else {}) for k, ups in nodes.items()]
    return {"key": key, "dag": {"nodes": inner, **more}} | ({"upstream": list(upstream)} if upstream else {})


def item(key: str, *upstream: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "topic": "work", **more} | ({"upstream": list(upstream)} if upstream else {})


async def start(world: DagWorld, *nodes: dict[str, Any], **more: Any) -> str:
    made = await world.call("POST", "", {"nodes": list(nodes), **more}, expect=201)
    await world.settle()
    return str(made["id"])


async def child_of(world: DagWorld, dag: str, key: str) -> str:
    return str((await world.node(dag, key))["dag"])


class SlowReport:
    """Holds the first report back before it is carried, and once more before its row is deleted."""

    def __init__(self, world: DagWorld) -> None:
        self.read, self.delete, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._carry = world.duties.sub_dags.carry
        self._first = True
        world.loops.relay._sub_dags.carry = self.carry  # type: ignore[method-assign]

    async def carry(self, shard: Any, send: Send) -> None:
        mine, self._first = self._first and send.action == "report", self._first and send.action != "report"
        if mine:
            await self.read.wait()
        await self._carry(shard, send)
        if mine:
            self.done.set()
            await self.delete.wait()


class Held:
    """Nothing is told between DAGs while this is entered."""

    def __init__(self, world: DagWorld) -> None:
        self._relay = world.loops.relay

    def __enter__(self) -> None:
        self._carry = self._relay._sub_dags.carry
        self._relay._sub_dags.carry = _nothing  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._relay._sub_dags.carry = self._carry  # type: ignore[method-assign]


class Between:
    """Something happens, once, when a node was released for its DAG's retry, and before that is retried; of
    several levels at the lowest, or that of `child`."""

    def __init__(self, world: DagWorld, then: Callable[[], Awaitable[None]], child: str | None = None) -> None:
        self._retries = world.duties.retrier._sub_dags
        self._then = then
        self._child = child

    def __enter__(self) -> None:
        self._node_first = self._retries._node_first
        self._retries._node_first = self._stopped  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._retries._node_first = self._node_first  # type: ignore[method-assign]

    async def _stopped(self, child: Dag, wanted: Retry) -> Above:
        if self._child not in (None, child.id):
            return await self._node_first(child, wanted)
        self.__exit__()
        above = await self._node_first(child, wanted)
        await self._then()
        return above


async def _nothing(_shard: Any, _send: Send) -> None:
    raise Unavailable("not now")


async def until(check: Any) -> None:
    async with asyncio.timeout(60):
        while not await check():
            await asyncio.sleep(0.01)


async def drained(world: DagWorld) -> None:
    for results in world.loops.results.values():
        await results.drain()


async def failed(world: DagWorld, *more: dict[str, Any]) -> tuple[str, str]:
    """a, then a DAG of x and then y in the place of mid, then z: x has failed. The DAG and the child."""
    nodes = [item("a"), sub("mid", {"x": [], "y": ["x"]}, "a"), item("z", "mid"), *more]
    dag = await start(world, *nodes)
    world.queue.ack("a", output=1)
    await world.settle()
    child = await child_of(world, dag, "mid")
    world.queue.die("x")
    await world.settle()
    return dag, child


async def finish(world: DagWorld, dag: str, *keys: str) -> None:
    """These are delivered one after another, nothing beside them, and are all that is left."""
    for key in keys:
        assert world.queue.deliverable() == [key]
        world.queue.ack(key, output=key)
        await world.settle()
    assert not world.queue.deliverable()
    assert (await world.dag(dag))["state"] == "succeeded"


async def refused(world: DagWorld, child: str, code: str = "dag_finished", **wanted: Any) -> None:
    """The child is not retried, which changes nothing."""
    before = await world.dag(child), world.queue.deliverable()
    answer = await world.verb(child, "retry", wanted, expect=409)
    assert (answer["code"], answer["outcome"]) == (code, "none"), answer
    await world.settle()
    await world.sweep()
    assert (await world.dag(child), world.queue.deliverable()) == before


async def run_out(world: DagWorld) -> list[str]:
    """All that is delivered from now on, in its order."""
    found: list[str] = []
    await world.sweep()
    while deliverable := sorted(world.queue.deliverable()):
        found += deliverable
        for key in deliverable:
            world.queue.ack(key)
        await world.settle()
        await world.sweep()
    return found
