"""Turns that wait: what wakes them, what they are told, and how their runs are parked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headgate import wire
from headgate.workflow.turns import Lease, RunFinished, Turn, TurnAnswer, TurnLost
from services.dag import store
from services.dag.api import workflow_intake
from services.dag.store.turns import AwakeRun
from shared.dag_notify import of_run
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.run_services import DagRuns

LONG_S = 20.0
SHORT_S = 0.01


def item(number: int, after: int = 1) -> dict[str, Any]:
    spec = {"topic": "pack", "payload": number}
    return {
        "kind": "item",
        "key": f"pack#{number}",
        "after": after,
        "fingerprint": "0" * 16,
        "shown": "",
        "spec": spec,
    }


def timer(at: str) -> dict[str, Any]:
    return {
        "kind": "timer",
        "key": "timer#1",
        "after": 1,
        "fingerprint": "2" * 16,
        "shown": "",
        "spec": {"at": at},
    }


class Awake:
    """A run whose first turn has asked for a task and a timer, and waits; `turn` is that turn."""

    def __init__(self, world: DagWorld) -> None:
        self.world = world
        self.runs = DagRuns(world)
        self.lease = Lease("", 0, "")
        self.turn = Turn(0, "", 0, 0, 0)
        self.waits = world.duties.turns

    async def begin(self) -> None:
        await self.runs.start()
        found = await self.runs.lease()
        assert found is not None
        self.lease = found
        commands = [item(1), timer("2020-01-01T00:00:00Z")]
        self.turn = Turn(found.generation, found.secret, 1, 1, 1, commands, wait_s=LONG_S)

    async def asks(self, wait_s: float = LONG_S) -> "asyncio.Task[TurnAnswer]":
        """The turn is sent, and waits."""
        before = self.waits.waiting
        call = asyncio.create_task(self.runs.turn(self.lease, replace(self.turn, wait_s=wait_s)))
        while self.waits.waiting == before or not await self.is_written():
            await asyncio.sleep(0.001)
        return call

    async def is_written(self) -> bool:
        return bool(await self.world.rows("SELECT FROM run WHERE turn = 1"))

    async def standing(self) -> tuple[str, int]:
        [row] = await self.world.rows("SELECT state, generation FROM node WHERE key = 'decider'")
        return row["state"], row["generation"]


@pytest.fixture
async def awake(world: DagWorld) -> AsyncIterator[Awake]:
    world.duties.context.news.hearers = 1
    made = Awake(world)
    await made.begin()
    yield made
    world.duties.context.news.hearers = 0
    await made.runs.close()


def told(answer: TurnAnswer) -> list[str]:
    return [event.key or event.state for event in answer.events if event.after is None]


async def refuse(*_: Any) -> None:
    raise AssertionError("it waits")


async def signals(awake: Awake) -> None:
    await awake.runs.signal("go")


async def is_asked_to_end(awake: Awake) -> None:
    await awake.runs.cancel()


async def task_ends(awake: Awake) -> None:
    await awake.runs.finish("pack#1", output=1)


async def timer_fires(awake: Awake) -> None:
    assert await awake.world.loops.timers.step(awake.world.shard) == 1


@pytest.mark.parametrize(
    ("happens", "name"),
    [
        (signals, "signal:go#1"),
        (is_asked_to_end, "cancel_requested"),
        (task_ends, "pack#1"),
        (timer_fires, "timer#1"),
    ],
)
async def test_a_turn_that_waits_is_told_at_once_in_its_own_generation(
    awake: Awake, happens: Callable[[Awake], Awaitable[None]], name: str
) -> None:
    call = await awake.asks()
    assert not (await awake.runs.shown())["parked"]
    await happens(awake)
    answer = await call
    assert told(answer) == [name]
    assert [event.key for event in answer.events if event.after] == ["pack#1", "timer#1"]
    assert (answer.turn, answer.parked, await awake.standing()) == (1, False, ("released", 1))
    last = answer.events[-1].event
    rest = Turn(1, awake.lease.secret, 2, last, last)
    assert (await awake.runs.turn(awake.lease, rest)).parked
    assert await awake.standing() == ("blocked", 2)


async def test_a_turn_that_has_waited_in_vain_parks(awake: Awake) -> None:
    assert (await (await awake.asks(SHORT_S))).parked
    assert await awake.standing() == ("blocked", 2)
    await awake.runs.acked(awake.lease)
    await awake.runs.finish("pack#1")
    assert await awake.standing() == ("released", 2)
    assert (await awake.runs.lease()) is not None


async def test_a_hint_that_is_lost_costs_the_time_that_is_left(awake: Awake) -> None:
    """The turn looks at the log itself before it parks."""
    watches = awake.world.duties.context.watches
    watches.tell = lambda *_: None  # type: ignore[method-assign]
    call = await awake.asks(SHORT_S)
    await awake.runs.signal("go")
    answer = await call
    assert told(answer) == ["signal:go#1"] or answer.parked
    assert (await awake.standing())[0] == "released", "an event has left the run parked"


async def test_nothing_waits_where_it_would_not_hear_or_where_too_many_do(awake: Awake) -> None:
    awake.waits._next = refuse  # type: ignore[method-assign]
    context = awake.world.duties.context
    context.news.hearers = 0
    assert (await awake.runs.turn(awake.lease, awake.turn)).parked
    context.news.hearers = 1
    await awake.runs.signal("go")
    lease = await awake.runs.lease()
    assert lease is not None
    awake.world.settings.__dict__["turns_waiting_max"] = 0
    try:
        later = Turn(lease.generation, lease.secret, 2, 4, 4, wait_s=LONG_S)
        assert (await awake.runs.turn(lease, later)).parked
    finally:
        awake.world.settings.__dict__["turns_waiting_max"] = 1_000


async def test_an_answer_that_is_lost_is_given_again_and_waits_again(awake: Awake) -> None:
    call = await awake.asks()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    again = await awake.asks()
    await awake.runs.signal("go")
    assert told(await again) == ["signal:go#1"]
    assert len(await awake.world.rows("SELECT FROM event WHERE key = 'pack#1'")) == 1


async def test_the_same_turn_without_a_wait_parks_a_run_that_is_awake(awake: Awake) -> None:
    """As a worker does that stops; who waited is told the same."""
    call = await awake.asks()
    assert (await awake.runs.turn(awake.lease, replace(awake.turn, wait_s=0.0))).parked
    assert (await call).parked
    assert await awake.standing() == ("blocked", 2)


async def test_a_later_turn_of_another_worker_leaves_none_waiting(awake: Awake) -> None:
    call = await awake.asks()
    later = Turn(1, awake.lease.secret, 2, 3, 3)
    assert (await awake.runs.turn(awake.lease, later)).parked
    with pytest.raises(TurnLost):
        await call


async def test_pause_terminate_and_move_reach_a_run_that_is_awake(awake: Awake) -> None:
    run = awake.runs.client.workflows.get(awake.runs.id)
    call = await awake.asks()
    await run.pause()
    assert (await call).parked
    assert await awake.standing() == ("blocked", 2)
    await run.resume()
    await awake.runs.signal("go")
    lease = await awake.runs.lease()
    assert lease is not None
    awake.lease, awake.turn = lease, Turn(lease.generation, lease.secret, 2, 4, 4, wait_s=LONG_S)
    call = asyncio.create_task(awake.runs.turn(lease, awake.turn))
    while not await awake.world.rows("SELECT FROM run WHERE turn = 2"):
        await asyncio.sleep(0.001)
    await run.move("2")
    assert (await call).parked
    awake.runs.topic = "wfv/2/order"
    lease = await awake.runs.lease()
    assert lease is not None
    call = asyncio.create_task(
        awake.runs.turn(lease, Turn(lease.generation, lease.secret, 3, 4, 4, wait_s=LONG_S))
    )
    while not await awake.world.rows("SELECT FROM run WHERE turn = 3"):
        await asyncio.sleep(0.001)
    await run.terminate()
    with contextlib.suppress(RunFinished):
        assert (await call).ended


async def test_a_run_that_is_paused_does_not_wait(awake: Awake) -> None:
    awake.waits._next = refuse  # type: ignore[method-assign]
    await awake.runs.client.workflows.get(awake.runs.id).pause()
    assert (await awake.runs.turn(awake.lease, awake.turn)).parked


async def test_a_run_whose_worker_has_hung_up_is_parked_at_once(awake: Awake) -> None:
    """Killed, it would not hear of the next event, which another worker is given."""

    class Worker:
        def __init__(self) -> None:
            self.gone_away: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def gone(self) -> "asyncio.Future[None]":
            return self.gone_away

        def step_aside(self) -> None:
            """It waits."""

    worker, settings = Worker(), awake.world.settings
    turn = workflow_intake.turn(wire.TakeTurn(**replace(awake.turn, wait_s=LONG_S).body()), settings)
    call = asyncio.create_task(awake.waits.take("default", awake.runs.dag, turn, worker))
    while not await awake.is_written():
        await asyncio.sleep(0.001)
    worker.gone_away.set_result(None)
    assert (await call).parked
    await awake.runs.signal("go")
    assert await awake.standing() == ("released", 2)


async def test_a_look_tells_nothing_of_a_run_that_has_gone_on_in_another_generation(awake: Awake) -> None:
    [row] = await awake.world.rows("SELECT dag_no FROM run")

    async def look(generation: int) -> tuple[bool, list[str]]:
        asked = [AwakeRun(row["dag_no"], generation, 1, 3)]
        [found] = await store.turns.news(awake.world.shard, asked, rows_max=10, bytes_max=1_000)
        return found.is_awake, [event.key for event in found.events]

    assert (await awake.runs.turn(awake.lease, replace(awake.turn, wait_s=0.0))).parked
    assert await look(1) == await look(2) == (False, [])
    await awake.runs.signal("go")
    assert await look(1) == (False, [])
    assert await look(2) == (True, ["signal:go#1"])


async def test_a_process_that_leaves_parks_what_waits_and_lets_nothing_wait(awake: Awake) -> None:
    call = await awake.asks()
    awake.world.duties.context.watches.leave()
    assert (await call).parked
    await awake.runs.signal("go")
    lease = await awake.runs.lease()
    assert lease is not None
    assert (await awake.runs.turn(lease, Turn(lease.generation, lease.secret, 2, 4, 4, wait_s=LONG_S))).parked


async def test_what_another_process_has_committed_is_heard_of_over_redis(
    awake: Awake, empty_database: Database
) -> None:
    """Here by the message itself; a message for nothing wakes nobody's run."""
    other = DagWorld(empty_database, awake.world.queue)
    context = other.duties.context
    context.news.hearers = 2
    said: list[str] = []
    context.news.tell = said.extend  # type: ignore[method-assign]
    heard = awake.world.loops.queue_events.heard_of_ends
    try:
        call = await awake.asks()
        heard(msgspec.msgpack.encode([of_run(awake.runs.dag)]))
        await asyncio.sleep(0)
        path = f"/v1/namespaces/default/workflows/{awake.runs.id}/signals"
        answer = await other.http.post(path, json={"name": "go"})
        assert answer.status_code == 202
        assert said == [of_run(awake.runs.dag)]
        assert not call.done()
        heard(msgspec.msgpack.encode(said))
        assert told(await call) == ["signal:go#1"]
    finally:
        await other.close()


async def test_an_update_is_answered_to_who_waits_for_it_by_a_turn_that_waits_itself(awake: Awake) -> None:
    """No look is made: the answer is told as it is written, though the run is not parked."""
    awake.world.settings.__dict__["watch_s"] = 3_600.0
    try:
        call = await awake.asks()
        run = awake.runs.client.workflows.get(awake.runs.id)
        asking = asyncio.create_task(run.update("address", 1, id="u", wait_s=LONG_S))
        [event] = [event for event in (await call).events if event.after is None]
        spec = {"id": "u", "state": "done", "output": 2}
        last, secret = event.event, awake.lease.secret
        answer = {
            "kind": "answer",
            "key": "signal:address#1",
            "after": last,
            "fingerprint": "3" * 16,
            "spec": spec,
        }
        later = Turn(1, secret, 2, last, last, [answer], wait_s=LONG_S)
        call = asyncio.create_task(awake.runs.turn(awake.lease, later))
        assert (await asking).output == 2
        assert not call.done()
        await awake.runs.signal("go")
        assert told(await call) == ["signal:go#1"]
    finally:
        awake.world.settings.__dict__["watch_s"] = 1.0
