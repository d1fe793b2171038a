"""Turns of runs against what happens beside them, their statements in every order.

Whatever the order: a run whose code has not seen an event that it is to be told is not left parked.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from services.dag.model import Ending
from tests.support.dag_scene import Scene
from tests.support.interleave import Actor, explore

WORKFLOWS = "/v1/namespaces/default/workflows"
DAGS = "/v1/namespaces/default/dags"
_serial = itertools.count()

Beside = Callable[[Actor], Awaitable[Any]]


def item(number: int, after: int = 1) -> dict[str, Any]:
    spec = {"topic": "pack", "payload": number}
    return {"kind": "item", "key": f"pack#{number}", "after": after, "fingerprint": "0" * 16, "spec": spec}


class RunScene:
    """A run whose decider is awake and has read `last` events, and two services at it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.id = self.dag = self.secret = ""
        self.number = self.last = 0

    async def begin(self) -> None:
        """The second turn waits to be sent: the first has made a task, which runs, and a step with its result."""
        await self.scene.clear()
        self.id = f"run-{next(_serial)}"
        http = self.scene.world.http
        made = await http.post(WORKFLOWS, json={"type": "order", "id": self.id})
        assert made.status_code == 201, made.text
        self.dag = made.json()["run"]
        await self.scene.world.settle()
        self.secret = self.scene.world.queue.item_of("decider").body["payload"]["secret"]
        step = {"kind": "step", "key": "step:a#1", "after": 1, "fingerprint": "1" * 16, "spec": {"name": "a"}}
        self.number, self.last = 1, 1
        at = {"at": "2020-01-01T00:00:00Z"}
        timer = {"kind": "timer", "key": "timer#1", "after": 1, "fingerprint": "2" * 16, "spec": at}
        answer = await self.send(
            http,
            [item(1), timer, step],
            results=[{"key": "step:a#1", "state": "succeeded", "output": 1}],
        )
        assert answer.status_code == 200, answer.text
        await self.scene.world.settle()
        self.number, self.last = 2, answer.json()["events"][-1]["event"]

    async def send(self, http: Any, commands: Any = (), **more: Any) -> Any:
        body = {"generation": 1, "secret": self.secret, "turn": self.number, "last": self.last, "seen": self.last}
        return await http.post(f"{DAGS}/{self.dag}/turn", json={**body, "commands": list(commands), **more})

    def turns(self, *commands: Any) -> Beside:
        async def turn(actor: Actor) -> str:
            answer = await self.send(actor.process.http, commands)
            body = answer.json()
            if answer.status_code != 200:
                return str(body["code"])
            told = [event for event in body.get("events", ()) if event.get("after") is None]
            return "parked" if body.get("parked") else "ended" if body.get("ended") else f"told {len(told)}"

        return turn

    async def waits(self, actor: Actor) -> str:
        """A turn that waits a moment; of what the other process does it hears nothing."""
        actor.process.duties.context.news.hearers = 1
        try:
            answer = await self.send(actor.process.http, [], wait_s=0.01)
        finally:
            actor.process.duties.context.news.hearers = 0
        body = answer.json()
        told = [event for event in body.get("events", ()) if event.get("after") is None]
        return str(body.get("code") or ("parked" if body.get("parked") else f"told {len(told)}"))

    async def ends(self, actor: Actor) -> int:
        ending = Ending(self.dag, "pack#1", 1, "succeeded", 1, None, None, None)
        return int(await actor.process.duties.completer.apply(actor.process.shard, [ending]))

    async def folds(self, actor: Actor) -> str:
        """The task's ack tells the run of it itself; or somebody else is at the run, and it is told afterwards."""
        self.scene.dag = self.dag
        how = str(await self.scene.folds("pack#1")(actor))
        if how == "told":
            assert await self.ends(actor) == 1
        return how

    async def signals(self, actor: Actor) -> int:
        path = f"{WORKFLOWS}/{self.id}/signals"
        return int((await actor.process.http.post(path, json={"name": "go", "id": "one"})).status_code)

    def posts(self, verb: str) -> Beside:
        async def post(actor: Actor) -> int:
            return int((await actor.process.http.post(f"{WORKFLOWS}/{self.id}/{verb}", json={})).status_code)

        return post

    async def updates(self, actor: Actor) -> int:
        path = f"{WORKFLOWS}/{self.id}/updates"
        return int((await actor.process.http.post(path, json={"name": "go", "id": "one"})).status_code)

    async def moves(self, actor: Actor) -> int:
        path = f"{WORKFLOWS}/{self.id}/move"
        return int((await actor.process.http.post(path, json={"version": "2"})).status_code)

    async def fires(self, actor: Actor) -> None:
        await actor.process.loops.timers.step(actor.process.shard)

    async def standing(self) -> tuple[str, bool, str, int]:
        """The run's state, whether its code has missed something, its decider's state, deliveries that wait."""
        query = """
            SELECT run.state, run.last_told > run.seen AS behind, node.state AS decider, dag.paused
            FROM run JOIN dag ON dag.no = run.dag_no JOIN node ON node.no = dag.no << 22 WHERE run.workflow_id = $1
        """
        [row] = await self.scene.world.rows(query, self.id)
        if row["state"] == "running" and row["behind"] and not row["paused"]:
            assert row["decider"] == "released", "an event has left the run parked"
        await self.scene.world.sweep()
        queue = self.scene.world.queue
        ready = [*queue.ready("wf/order"), *queue.ready("wfv/2/order")]
        return row["state"], row["behind"], row["decider"], len({each.generation for each in ready})


async def run_race(
    scene: Scene,
    name: str,
    commands: list[Any],
    allowed: dict[tuple[Any, Any], tuple[str, bool, str]],
    *,
    waits: bool = False,
) -> None:
    run = RunScene(scene)
    beside: Beside = getattr(run, name) if hasattr(run, name) else run.posts(name)
    seen: set[tuple[Any, Any]] = set()
    if name == "turns":
        beside = run.turns(item(3, after=5))
    turn = run.waits if waits else run.turns(*commands)

    async def begin() -> list[Any]:
        await run.begin()
        return [lambda: turn(scene.actors[0]), lambda: beside(scene.actors[1])]

    async def check(results: list[Any]) -> None:
        pair = (results[0], results[1])
        assert pair in allowed, "these answers do not go together"
        found = await run.standing()
        assert found[:3] == allowed[pair], f"the run is {found}"
        if found[2] == "released":
            assert found[3] >= 1, "nothing is delivered"
        seen.add(pair)
        await scene.world.audit(run.dag)

    orders = await explore(scene.watcher, scene.actors, begin, check, interruptions_max=1)
    assert orders > 1
    assert seen == set(allowed), f"only {seen} in {orders} orders: the race was never run"


AWAKE = ("running", True, "released")


async def test_a_turn_parks_while_its_task_ends(scene: Scene) -> None:
    await run_race(scene, "ends", [], {("parked", 1): AWAKE, ("told 1", 1): AWAKE})


async def test_a_turn_parks_while_the_ack_of_its_task_is_folded(scene: Scene) -> None:
    await run_race(
        scene,
        "folds",
        [],
        {("parked", "folded"): AWAKE, ("told 1", "folded"): AWAKE, ("parked", "told"): AWAKE},
    )


async def test_a_turn_that_waits_parks_while_a_signal_comes(scene: Scene) -> None:
    """Before it waits, while it does, as it parks, and after."""
    await run_race(scene, "signals", [], {("parked", 202): AWAKE, ("told 1", 202): AWAKE}, waits=True)


async def test_a_turn_that_waits_parks_while_its_task_ends(scene: Scene) -> None:
    await run_race(scene, "ends", [], {("parked", 1): AWAKE, ("told 1", 1): AWAKE}, waits=True)


async def test_a_turn_parks_while_a_signal_comes(scene: Scene) -> None:
    await run_race(scene, "signals", [], {("parked", 202): AWAKE, ("told 1", 202): AWAKE})


async def test_a_turn_parks_while_an_update_comes(scene: Scene) -> None:
    await run_race(scene, "updates", [], {("parked", 200): AWAKE, ("told 1", 200): AWAKE})


async def test_a_turn_parks_while_a_timer_fires(scene: Scene) -> None:
    await run_race(scene, "fires", [], {("parked", None): AWAKE, ("told 1", None): AWAKE})


async def test_a_turn_parks_while_the_run_is_asked_to_end(scene: Scene) -> None:
    await run_race(scene, "cancel", [], {("parked", 202): AWAKE, ("told 1", 202): AWAKE})


async def test_a_turn_is_written_while_the_run_is_ended(scene: Scene) -> None:
    over = ("cancelled", True, "cancelled")
    parked = ("cancelled", False, "cancelled")
    await run_race(
        scene, "terminate", [item(2, after=5)], {("parked", 202): parked, ("workflow_finished", 202): over}
    )


async def test_a_run_ends_while_a_signal_comes(scene: Scene) -> None:
    end = {"kind": "end", "key": "", "after": 5, "fingerprint": "3" * 16, "spec": {"state": "succeeded"}}
    await run_race(
        scene,
        "signals",
        [end],
        {("ended", 409): ("succeeded", False, "succeeded"), ("ended", 202): ("succeeded", True, "succeeded")},
    )


async def test_two_workers_send_the_same_turn_of_other_content(scene: Scene) -> None:
    await run_race(
        scene,
        "turns",
        [item(2, after=5)],
        {
            ("parked", "turn_lost"): ("running", False, "blocked"),
            ("turn_lost", "parked"): ("running", False, "blocked"),
        },
    )


async def test_a_run_is_moved_while_a_turn_is_written(scene: Scene) -> None:
    """Either the turn comes first, and the run is moved parked; or the worker has lost it."""
    await run_race(
        scene,
        "moves",
        [item(2, after=5)],
        {("parked", 202): ("running", False, "blocked"), ("turn_lost", 202): AWAKE},
    )


async def test_a_run_is_paused_while_a_turn_is_written(scene: Scene) -> None:
    await run_race(scene, "pause", [item(2, after=5)], {("parked", 202): ("running", False, "blocked")})
