"""Updates of runs against what others do with the run, their statements in every order.

Whatever the order: each update that was taken is answered, and its answers are all the same; in the history that
holds it is applied once, or, where the run has ended before, not at all.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, Workflow
from headgate._worker.deciders import RestRuns
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import Lease
from tests.support.bounded import steps
from tests.support.dag_scene import Scene
from tests.support.dag_world import DagWorld
from tests.support.interleave import Actor, explore
from tests.support.run_services import TYPE, DagRuns

WORKFLOWS = "/v1/namespaces/default/workflows"
BODIES: dict[str, Any] = {"move": {"version": "2"}, "reset": {"event": 1}}
_serial = itertools.count()

Verb = Callable[[Actor], Awaitable[Any]]


async def code(wf: Workflow, is_second: bool | None = None) -> list[int]:
    applied: list[int] = []

    async def add(count: int) -> int:
        applied.append(count)
        return count

    wf.on_update("add", add)
    if await wf.receive("go") == "next":
        return wf.continue_as_new(True)
    return applied


class UpdateScene:
    """A run whose code takes updates until it is told to go, and two services at it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.runs = DagRuns(scene.world)
        self.driver = Driver({TYPE: code}, self.runs.runs)
        self.lease: Any = None

    async def begin(self) -> None:
        await self.scene.clear()
        self.runs.id, self.runs.topic = f"updated-{next(_serial)}", f"wf/{TYPE}"
        await self.runs.start()
        await self.drive()

    async def delivered(self) -> Any:
        """The item of the run that is meant now."""
        await self.scene.world.settle()
        ready = self.scene.world.queue.ready(self.runs.topic)
        ready = [item for item in ready if item.body["ack_context"]["dag"] == self.runs.dag]
        return max(ready, key=lambda item: item.generation, default=None)

    async def drive(self) -> None:
        """Workers go on with the run until nothing is delivered, also as the next one."""
        for _ in steps():
            run = await self.runs.client.workflows.get(self.runs.id).show()
            self.runs.dag = str(run.run)
            if run.version is not None:
                self.runs.topic = f"wfv/{run.version}/{TYPE}"
            if (item := await self.delivered()) is None:
                return
            lease = Lease(self.runs.dag, item.generation, item.body["payload"]["secret"])
            await self.driver.work(TYPE, lease)
            self.scene.world.queue.end(item, "acked")
            await self.scene.world.settle()

    async def updates(self, actor: Actor) -> int:
        body = {"name": "add", "id": "one", "data": 5}
        return int((await actor.process.http.post(f"{WORKFLOWS}/{self.runs.id}/updates", json=body)).status_code)

    def does(self, verb: str) -> Verb:
        async def post(actor: Actor) -> int:
            path = f"{WORKFLOWS}/{self.runs.id}/{verb}"
            return int((await actor.process.http.post(path, json=BODIES.get(verb, {}))).status_code)

        return post

    async def works(self, actor: Actor) -> None:
        """A worker has the run's delivery."""
        transport = httpx.ASGITransport(app=actor.process.app.state.hot)
        async with AsyncClient(
            queue_url="http://localhost", dag_url="http://localhost", transport=transport
        ) as client:
            await Driver({TYPE: code}, RestRuns(client, "default")).work(TYPE, self.lease)

    async def become(self) -> str:
        """What becomes of the update once workers go on with the run; no more than one answer holds."""
        handle = self.runs.client.workflows.get(self.runs.id)
        run = await handle.show()
        if run.paused:
            await handle.resume()
        await self.scene.world.sweep()
        await self.drive()
        found = await handle.update_state("one")
        assert found.status != "pending", "nobody answers it"
        if (await handle.show()).state == "running":
            await self.runs.signal("go", id="last")
            await self.drive()
            assert (await handle.show()).output == [5], "it is applied once"
        assert await handle.update_state("one") == found
        query = """
            SELECT count(*) AS answers FROM run JOIN event ON event.dag_no = run.dag_no
            WHERE run.workflow_id = $1 AND kind = 'answer' AND void IS NULL
        """
        [row] = await self.scene.world.rows(query, self.runs.id)
        assert row["answers"] == int(found.status == "done")
        assert (found.status, found.output) in (("done", 5), ("failed", None))
        return found.status


@pytest.fixture
async def updated(scene: Scene) -> AsyncIterator[UpdateScene]:
    made = UpdateScene(scene)
    yield made
    await made.runs.close()


async def update_race(
    it: UpdateScene,
    first: Verb,
    beside: Verb,
    allowed: set[tuple[Any, str]],
    before: Callable[[], Awaitable[Any]] | None = None,
) -> None:
    """What the update's call is answered where that is one of the two, and what becomes of it."""
    seen: set[tuple[Any, str]] = set()
    scene = it.scene

    async def begin() -> list[Any]:
        await it.begin()
        if before is not None:
            await before()
        if (item := await it.delivered()) is not None:
            it.lease = Lease(it.runs.dag, item.generation, item.body["payload"]["secret"])
        return [lambda: first(scene.actors[0]), lambda: beside(scene.actors[1])]

    async def check(results: list[Any]) -> None:
        became = (results[0], "refused" if results[0] == 409 else await it.become())
        assert became in allowed
        seen.add(became)

    orders = await explore(scene.watcher, scene.actors, begin, check, interruptions_max=1)
    assert orders > 1
    assert seen == allowed, f"only {seen} in {orders} orders: the race was never run"


DONE = (200, "done")
FAILED = (200, "failed")


@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("reset", {DONE}),
        ("pause", {DONE}),
        ("move", {DONE}),
        ("cancel", {DONE, FAILED}),
        ("terminate", {FAILED, (409, "refused")}),
    ],
)
async def test_an_update_is_sent_while_its_run_is_changed(
    updated: UpdateScene, verb: str, allowed: set[tuple[Any, str]]
) -> None:
    await update_race(updated, updated.updates, updated.does(verb), allowed)


async def test_an_update_is_sent_while_its_run_goes_on_as_a_new_one(updated: UpdateScene) -> None:
    async def before() -> None:
        await updated.runs.signal("go", "next")

    await update_race(updated, updated.updates, updated.works, {DONE}, before)


@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("reset", {"done"}),
        ("pause", {"done"}),
        ("move", {"done"}),
        ("cancel", {"done"}),
        ("terminate", {"done", "failed"}),
    ],
)
async def test_an_update_is_answered_while_its_run_is_changed(
    updated: UpdateScene, verb: str, allowed: set[str]
) -> None:
    async def before() -> None:
        await updated.runs.client.workflows.get(updated.runs.id).update("add", 5, id="one", wait_s=0)

    await update_race(updated, updated.works, updated.does(verb), {(None, became) for became in allowed}, before)


@pytest.mark.parametrize("verb", ["reset", "pause", "move", "cancel", "terminate", "continued"])
async def test_whoever_waits_for_an_update_is_told_whatever_is_done_with_the_run(
    world: DagWorld, verb: str
) -> None:
    scene = Scene(world, [], None)
    it = UpdateScene(scene)
    it.runs.id = "waited-for"
    await it.runs.start()
    await it.drive()
    handle = it.runs.client.workflows.get(it.runs.id)
    if verb == "continued":
        await it.runs.signal("go", "next")
    waits = asyncio.create_task(handle.update("add", 5, id="one", wait_s=20))
    while not len(world.duties.context.watches):
        await asyncio.sleep(0)
    if verb != "continued":
        answer = await world.http.post(f"{WORKFLOWS}/{it.runs.id}/{verb}", json=BODIES.get(verb, {}))
        assert answer.status_code == 202, answer.text
    became = await it.become()
    assert (await asyncio.wait_for(waits, 10)).status == became
    await it.runs.close()
