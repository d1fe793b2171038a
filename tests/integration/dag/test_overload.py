"""More comes to the DAG service than can be done: what is refused, how, and what goes on regardless."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from shared.admission.connection_priority import Urgency
from shared.admission.fair_queue import TICK_S, Entrance
from shared.http.hot_path import HotPath
from tests.support.clocks import ManualClock
from tests.support.dag_world import BASE, DagWorld

ROOM_KIB = 8
STEERING_KIB = 26  # of who steers, beside builders
PATIENCE_S = 0.5


@pytest.fixture
async def front(world: DagWorld) -> AsyncIterator[httpx.AsyncClient]:
    """The service by its short way in: the path that a program's calls take."""
    transport = httpx.ASGITransport(app=world.app.state.hot, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def refused(answer: httpx.Response) -> bool:
    """Whether a call was turned away as the contract says; else it was served."""
    if answer.status_code < 300:
        return False
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["outcome"]) == ("overloaded", "none")
    assert int(answer.headers["retry-after"]) >= 1
    return True


def late(world: DagWorld, times_too_late: float) -> None:
    """The event loop has been late, all through an interval, by so many times what a call may wait."""
    for _ in range(100):
        world.app.state.lag.sample(world.settings.standing_wait_s_max * times_too_late)


def node(key: str, *upstream: str) -> dict[str, Any]:
    return {"key": key, "topic": "t", **({"upstream": list(upstream)} if upstream else {})}


@pytest.mark.parametrize("by", ["its route", "the short way"])
async def test_a_late_event_loop_turns_away_reads_and_building_before_control_and_never_ends(
    world: DagWorld, front: httpx.AsyncClient, by: str
) -> None:
    http = front if by == "the short way" else world.http
    dag = await world.create([{"key": "a", "topic": "t", "external": ["x"]}, node("b", "a")])
    building = [
        ("", {"nodes": [node("a")]}),
        (f"/{dag}/nodes", {"nodes": [node("c", "a")]}),
        (f"/{dag}/dependencies", {"dependencies": [{"upstream": "a", "downstream": "b"}]}),
    ]

    late(world, 1.5)
    for path, body in building:
        assert refused(await http.post(BASE + path, json=body)), path
    for path in ("", f"/{dag}", f"/{dag}/wait", f"/{dag}/nodes"):
        assert refused(await http.get(BASE + path)), path
    resolve = {"external": [{"node": "a", "name": "x"}]}
    assert not refused(await http.post(f"{BASE}/{dag}/resolve", json=resolve))
    await world.settle()

    late(world, 3.0)
    for verb, body in (("resolve", resolve), ("cancel", {}), ("pause", {})):
        assert refused(await http.post(f"{BASE}/{dag}/{verb}", json=body)), verb
    for path in ("/livez", "/readyz"):
        assert (await http.get(path)).status_code == 200
    for key in ("a", "b"):
        world.queue.ack(key)
        await world.settle()

    late(world, 0.0)
    assert await world.states(dag) == {"a": "succeeded", "b": "succeeded"}
    assert len(await world.rows("SELECT FROM dag")) == 1
    assert len(await world.rows("SELECT FROM node")) == 2
    assert not refused(await http.post(BASE, json={"nodes": [node("a")]}))


class Short:
    """The entrance of a service whose processor is short. Its clock goes when it is told."""

    def __init__(self, hot: HotPath, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.timers: list[Callable[[], None]] = []
        self.entrance = hot.entrance = Entrance(
            ROOM_KIB, PATIENCE_S, self.clock, lambda _s, tick: self.timers.append(tick)
        )
        self.begun: list[Urgency] = []
        start = self.entrance._start

        def begin(call: Any) -> None:
            self.begun.append(call.level)
            start(call)

        monkeypatch.setattr(self.entrance, "_start", begin)

    def late(self) -> None:
        """The timer that says whether the loop is in time comes late."""
        [tick] = self.timers
        self.timers.clear()
        self.clock.advance(10 * TICK_S)
        tick()

    async def until(self, *, working: int | None = None, standing: int | None = None) -> None:
        async with asyncio.timeout(60):
            while (working is not None and self.entrance._working != working) or (
                standing is not None and self.entrance.standing != standing
            ):
                await asyncio.sleep(0.005)


async def test_a_crowd_of_builders_is_refused_at_once_and_who_steers_goes_first(
    world: DagWorld, front: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create([{"key": "a", "topic": "t", "external": ["x"]}])
    short = Short(world.app.state.hot, monkeypatch)

    def build(name: str, namespace: str = "default") -> Awaitable[httpx.Response]:
        return front.post(f"/v1/namespaces/{namespace}/dags", json={"nodes": [node(name)]})

    def resolve() -> Awaitable[httpx.Response]:
        return front.post(f"{BASE}/{dag}/resolve", json={"external": [{"node": "a", "name": "x"}]})

    calls: list[asyncio.Future[httpx.Response]] = []
    connection = await world.connect()
    async with connection.transaction():
        await connection.execute("LOCK TABLE dag IN SHARE MODE")  # whoever makes or changes one waits
        for n in range(ROOM_KIB + 1):
            calls.append(asyncio.ensure_future(build(f"w{n}")))
            await short.until(working=n + 1)
        short.late()
        calls.append(asyncio.ensure_future(build("stands")))
        await short.until(standing=1)
        for n in range(ROOM_KIB + 2, STEERING_KIB + 1):
            calls.append(asyncio.ensure_future(resolve()))
            await short.until(working=n, standing=1)
        calls += map(asyncio.ensure_future, (build("other", "other"), resolve()))
        await short.until(standing=3)
        short.clock.advance(PATIENCE_S)
        assert refused(await build("refused"))
        assert short.entrance.standing == 3, "it did not join the line"
    await connection.close()

    assert not any(refused(answer) for answer in await asyncio.gather(*calls))
    assert short.begun[-3] == Urgency.DEQUEUE, "of those that stood it was the first"
    assert await world.rows("SELECT FROM node WHERE key = 'refused'") == []
    assert len(await world.rows("SELECT FROM dag")) == ROOM_KIB + 4


async def test_who_waits_for_the_end_of_a_dag_takes_no_room(
    world: DagWorld, front: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create([node("a")])
    await world.settle()
    short = Short(world.app.state.hot, monkeypatch)
    waits = [
        asyncio.create_task(front.get(f"{BASE}/{dag}/wait", params={"timeout_s": 20})) for _ in range(3 * ROOM_KIB)
    ]
    async with asyncio.timeout(60):
        while len(world.duties.context.watches) != len(waits):
            await asyncio.sleep(0.005)
    await short.until(working=0, standing=0)
    assert not refused(await front.post(BASE, json={"nodes": [node("b")]}))
    world.queue.ack("a")
    await world.settle()
    for answer in await asyncio.gather(*waits):
        assert answer.json()["state"] == "succeeded"
