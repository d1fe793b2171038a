"""DAGs in the place of nodes, as tests make them and watch them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.dag.model import Dag, Send
from services.dag.run.subdag_retry import Above
from shared.errors import Unavailable
from tests.support.dag_world import DagWorld


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
    """Something happens, once, when a node was released for its DAG's retry, and before that."""

    def __init__(self, world: DagWorld, then: Callable[[], Awaitable[None]]) -> None:
        self._retries = world.duties.retrier._sub_dags
        self._then = then

    def __enter__(self) -> None:
        self._node_first = self._retries._node_first
        self._retries._node_first = self._stopped  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._retries._node_first = self._node_first  # type: ignore[method-assign]

    @asynccontextmanager
    async def _stopped(self, child: Dag) -> AsyncIterator[Above]:
        self.__exit__()
        async with self._node_first(child) as above:
            await self._then()
            yield above


async def _nothing(_shard: Any, _send: Send) -> None:
    raise Unavailable("not now")


async def until(check: Any) -> None:
    async with asyncio.timeout(60):
        while not await check():
            await asyncio.sleep(0.01)


async def drained(world: DagWorld) -> None:
    for results in world.loops.results.values():
        await results.drain()
