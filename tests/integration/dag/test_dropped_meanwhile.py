"""A DAG whose time is over is dropped between two looks of a call: it is told whole, or is not there."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared.postgres.connections import Pool
from tests.support.dag_world import BASE, DagWorld

SPEC: list[dict[str, Any]] = [
    {"key": "a"},
    {"key": "b", "upstream": ["a"], "external": ["x"], "pass_outputs": True},
]
ASKED = (
    "",
    "/nodes",
    "/nodes?state=succeeded",
    "/node?key=b",
    "/node/inputs?key=b",
    "/node/output?key=b",
    "/outputs",
    "/graph",
    "/graph?format=dot",
    "/export",
    "/timeline?key=b",
    "/timelines",
    "/frontier",
    "/values",
    "/wait",
    "/wait?node=b",
)
RUNS = "/v1/namespaces/default/workflows"
FOR_EVER_S = 1e9
END_S = 20.0
LOOKS_MAX = 20


@pytest.fixture(autouse=True)
def no_grace(world: DagWorld) -> None:
    world.settings.__dict__["ended_dag_grace_s"] = 0.0


async def kept(world: DagWorld) -> str:
    """A DAG that has ended, and has left the hot tables."""
    world.settings.__dict__["ended_dag_retention_s"] = FOR_EVER_S
    dag = await world.create(SPEC)
    await world.call("PUT", f"/{dag}/values/v", {"value": 1}, expect=200)
    await world.verb(dag, "resolve", {"external": [{"node": "b", "name": "x", "data": 2}]})
    await world.settle()
    for key in "ab":
        world.queue.ack(key, output=f"of {key}")
        await world.settle()
    await world.loops.retention.step(world.shard)
    return dag


async def drop(world: DagWorld) -> None:
    """The time of all that has ended is over."""
    world.settings.__dict__["ended_dag_retention_s"] = 0.0
    await world.loops.retention.step(world.shard)


class Looks:
    """Counts what a call asks its shard, and drops what has ended before the look of this number."""

    def __init__(self, world: DagWorld, before: int) -> None:
        self.world, self.before = world, before
        self.count = 0
        self.is_dropping = False

    async def one(self) -> None:
        if self.is_dropping:
            return
        if self.count == self.before:
            self.is_dropping = True
            await drop(self.world)
            self.is_dropping = False
        self.count += 1

    @contextmanager
    def counted(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        with patch.context() as patched:
            for name in ("fetch", "row", "transaction"):
                patched.setattr(Pool, name, self._counting(getattr(Pool, name)))
            yield

    def _counting(self, ask: Any) -> Any:
        async def asked(pool: Pool, *args: Any, **values: Any) -> Any:
            await self.one()
            return await ask(pool, *args, **values)

        return asked


async def told_whole_or_not_at_all(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, make: Callable[[DagWorld], Awaitable[str]]
) -> None:
    """Ask again and again for what was made anew, each time with the drop before a later look."""
    for before in range(LOOKS_MAX):
        url = await make(world)
        whole = await world.http.get(url)
        assert whole.status_code == 200, whole.text
        looks = Looks(world, before)
        with looks.counted(monkeypatch):
            told = await world.http.get(url)
        assert told.status_code == 404 or told.text == whole.text, (before, told.status_code, told.text)
        await drop(world)
        if looks.count <= before:
            return
    raise AssertionError("so many looks at a small DAG")


@pytest.mark.parametrize("path", ASKED)
async def test_what_is_asked_of_a_dag_is_told_whole_or_is_not_there(
    world: DagWorld, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(world: DagWorld) -> str:
        return f"{BASE}/{await kept(world)}{path}"

    await told_whole_or_not_at_all(world, monkeypatch, make)


@pytest.mark.parametrize("path", ["", "/history", "/wait"])
async def test_a_run_is_told_whole_or_is_not_there(
    world: DagWorld, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(world: DagWorld) -> str:
        world.settings.__dict__["ended_dag_retention_s"] = FOR_EVER_S
        started = await world.http.post(RUNS, json={"type": "order", "id": "o", "input": 1})
        assert started.status_code == 201, started.text
        await world.settle()
        assert (await world.http.post(f"{RUNS}/o/terminate", json={})).status_code in (200, 202)
        await world.settle()
        await world.loops.retention.step(world.shard)
        return f"{RUNS}/o{path}"

    await told_whole_or_not_at_all(world, monkeypatch, make)


@pytest.mark.parametrize("rows", [1, 5_000])
async def test_a_stream_of_a_dag_that_is_dropped_ends(
    world: DagWorld, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves nothing out: what it has told by then is all up to there."""
    world.settings.__dict__["keep_rows_max"] = rows
    for before in range(LOOKS_MAX):
        dag = await kept(world)
        whole = (await world.http.get(f"{BASE}/{dag}/events")).text
        looks = Looks(world, before)
        with looks.counted(monkeypatch):
            async with asyncio.timeout(END_S):
                told = await world.http.get(f"{BASE}/{dag}/events")
        assert told.status_code == 404 or whole.startswith(told.text), (before, told.text)
        await drop(world)
        if looks.count <= before:
            return
    raise AssertionError("so many looks at a small DAG")


async def test_a_quiet_stream_ends_once_its_dag_is_dropped(world: DagWorld) -> None:
    """It was opened while the DAG ran, and hears of the end no more."""
    dag = await world.create({"a": []})
    await world.settle()
    stream = await world.duties.streams.open("default", dag, 0)
    assert stream is not None
    frames = stream.frames()
    assert b"retry" in await anext(frames)
    world.queue.ack("a")
    await world.settle()
    await drop(world)
    world.settings.__dict__["event_keepalive_s"] = 0.0
    async with asyncio.timeout(END_S):
        assert [frame async for frame in frames if frame != b":\n\n"] == []
    stream.close()
