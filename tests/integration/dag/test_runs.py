"""The contract of runs, kept by the run in memory and by the DAG service alike.

Every crash and race of a turn, and every turn that is none. What is refused changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import NodeFailed, Workflow
from headgate.testing import replay
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import Diverged, Lease, RunFinished, Turn, TurnLost
from services.dag.model import Send
from tests.support.bounded import steps
from tests.support.dag_world import DagWorld
from tests.support.run_services import TYPE, DagRuns, MemoryRuns, RunService, drive


@pytest.fixture(params=["memory", "dag"])
async def service(request: pytest.FixtureRequest, world: DagWorld) -> AsyncIterator[RunService]:
    """A run that has begun, of either service."""
    made: MemoryRuns | DagRuns
    if request.param == "memory":
        made = MemoryRuns()
        await made.start({"items": 2})
        yield made
        return
    made = DagRuns(world)
    await made.start({"items": 2})
    yield made
    await made.close()


def item(number: int, after: int = 1, topic: str = "pack") -> dict[str, Any]:
    return {
        "kind": "item",
        "key": f"{topic}#{number}",
        "after": after,
        "fingerprint": "0" * 16,
        "shown": "",
        "spec": {"topic": topic, "payload": number},
    }


def command(kind: str, key: str = "", after: int = 1, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "key": key, "after": after, "fingerprint": "1" * 16, "shown": "x", "spec": spec}


def turn(lease: Lease, number: int = 1, last: int = 1, seen: int = 1, *commands: Any, **more: Any) -> Turn:
    return Turn(lease.generation, lease.secret, number, last, seen, commands, **more)


async def leased(service: RunService) -> Lease:
    lease = await service.lease()
    assert lease is not None, "the decider waits to be delivered"
    return lease


async def test_a_turn_parks_and_an_end_wakes_it_in_the_next_generation(service: RunService) -> None:
    lease = await leased(service)
    answer = await service.turn(lease, turn(lease, 1, 1, 1, item(1), item(2)))
    assert (answer.turn, answer.parked) == (1, True)
    await service.acked(lease)
    assert await service.lease() is None and (await service.shown())["parked"]
    await service.finish("pack#2", output="two")
    awake = await leased(service)
    assert awake.generation > lease.generation and awake.secret != lease.secret
    page = await service.history(awake, 0)
    assert [(event.kind, event.key, event.state) for event in page.events] == [
        ("run", "", "started"),
        ("item", "pack#1", "added"),
        ("item", "pack#2", "added"),
        ("item", "pack#2", "succeeded"),
    ]
    assert (page.events[3].output, page.seen, page.turn) == ("two", 1, 1)
    assert [event.after for event in page.events] == [None, 1, 1, None]


async def test_a_decider_whose_item_is_lost_has_a_new_secret(world: DagWorld) -> None:
    """The queue knows nothing of it any more: whoever has held it does not go on with the run."""
    runs = DagRuns(world)
    await runs.start()
    old = await leased(runs)
    [row] = await world.rows("SELECT no, item_id::text AS item_id FROM node WHERE key = 'decider'")
    await world.duties.completer.renew(
        world.shard, Send(row["no"], old.generation, "enqueue", row["item_id"], "default")
    )
    new = await leased(runs)
    assert new.generation == old.generation + 1 and new.secret != old.secret
    with pytest.raises(TurnLost):
        await runs.turn(old, turn(Lease(old.run, new.generation, old.secret)))
    assert (await runs.turn(new, turn(new))).parked
    await runs.close()


async def test_turns_of_a_run_whose_dag_was_moved_away_are_answered_as_before_that(world: DagWorld) -> None:
    """A worker that stood still comes back with its turn long after the run has ended."""
    world.settings.__dict__["ended_dag_grace_s"] = 0.0
    runs = DagRuns(world)
    await runs.start()
    lease = await leased(runs)
    last = turn(lease, 1, 1, 1, command("end", state="succeeded", output=1))
    assert (await runs.turn(lease, last)).ended
    await runs.acked(lease)
    for _ in steps():
        if not await world.loops.retention.step(world.shard):
            break
    assert await world.rows("SELECT FROM node") == [] and await world.rows("SELECT FROM kept")
    assert (await runs.turn(lease, last)).ended
    for late in (turn(lease, 1, 1, 1, item(1)), turn(lease, 2)):
        with pytest.raises(RunFinished):
            await runs.turn(lease, late)
    await runs.close()


async def test_a_run_that_failed_within_a_timeout_goes_on_within_it(world: DagWorld) -> None:
    """Code that fails leaves its timeouts: what that cancelled, mended code does not, and still waits for."""
    is_mended = False

    async def code(wf: Workflow) -> str:
        try:
            async with asyncio.timeout(3_600):
                await wf.call("pack", 1)
                wf.publish("state", "mended" if is_mended else "old")
                assert is_mended
                await wf.receive("nothing")
        except TimeoutError:
            return "late"
        return "never"

    runs = DagRuns(world)
    await runs.start()
    driver = Driver({TYPE: code}, runs.runs)
    await drive(runs, driver)
    await runs.finish("pack#1")
    await drive(runs, driver)
    assert (await runs.shown())["state"] == "failed"
    is_mended = True
    await runs.resume()
    await drive(runs, driver)
    shown = await runs.shown()
    assert (shown["state"], shown["stuck"], shown["published"]) == ("running", None, {"state": "mended"})
    timers = [(event.key, event.state) for event in await runs.events() if event.kind == "timer"]
    assert timers == [("timer#1", "added"), ("timer#1", "cancelled"), ("timer#2", "added")]
    await world.rows(
        "CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
        "AS $$ SELECT clock_timestamp() + interval '3601 s' $$"
    )
    assert await world.loops.timers.step(world.shard) == 1
    await drive(runs, driver)
    assert (await runs.shown())["output"] == "late"
    replay(await runs.events(), code)
    await runs.close()


async def test_a_task_of_topic_timer_is_no_timer(service: RunService) -> None:
    async def code(wf: Workflow) -> list[Any]:
        first = await wf.call("timer", 1)
        async with asyncio.timeout(3_600):
            return [first, await wf.receive("go")]

    driver = Driver({TYPE: code}, service)
    await drive(service, driver)
    await service.finish("item:timer#1", output="a task")
    await drive(service, driver)
    await service.signal("go", 7)
    await drive(service, driver)
    assert (await service.shown())["output"] == ["a task", 7]
    asked = [(event.kind, event.key) for event in await service.events() if event.after is not None]
    assert asked[:2] == [("item", "item:timer#1"), ("timer", "timer#1")]


async def test_times_of_a_call_are_those_of_its_item(world: DagWorld) -> None:
    async def code(wf: Workflow) -> None:
        await wf.call("pack", 1, start_to_close_s=5, schedule_to_start_s=60)

    runs = DagRuns(world)
    await runs.start()
    await drive(runs, Driver({TYPE: code}, runs))
    body = world.queue.item_of("pack#1").body
    assert (body["timeout_s"], body["ttl_s"]) == (5, 60)
    assert "start_to_close_s" not in body
    await runs.finish("pack#1", "expired")
    await drive(runs, Driver({TYPE: code}, runs))
    shown = await runs.shown()
    assert shown["state"] == "failed"
    await runs.close()


async def test_the_same_turn_again_is_answered_again(service: RunService) -> None:
    """Written, and the answer was lost."""
    lease = await leased(service)
    sent = turn(lease, 1, 1, 1, item(1))
    first = await service.turn(lease, sent)
    assert await service.turn(lease, sent) == first
    assert len(await service.events()) == 2
    with pytest.raises(TurnLost):
        await service.turn(lease, turn(lease, 1, 1, 1, item(2)))


async def test_an_event_between_the_read_and_the_turn_keeps_the_run_awake(service: RunService) -> None:
    lease = await leased(service)
    await service.signal("go", 7)
    answer = await service.turn(lease, turn(lease, 1, 1, 1, item(1)))
    assert not answer.parked
    assert [(event.kind, event.key) for event in answer.events] == [("signal", "signal:go#1"), ("item", "pack#1")]
    answer = await service.turn(lease, turn(lease, 2, 3, 2, received={"go": 1}))
    assert answer.parked


async def test_an_item_that_comes_again_after_the_park_finds_its_turn_lost(service: RunService) -> None:
    lease = await leased(service)
    await service.turn(lease, turn(lease, 1, 1, 1, item(1)))
    with pytest.raises(TurnLost):
        await service.turn(lease, turn(lease, 2, 2, 1, item(2)))
    assert len(await service.events()) == 2


async def test_of_two_workers_one_writes_the_turn(service: RunService) -> None:
    lease = await leased(service)
    await service.turn(lease, turn(lease, 1, 1, 1, command("step", "step:a#1", name="a", args=[])))
    with pytest.raises(TurnLost):
        await service.turn(lease, turn(lease, 1, 1, 1, command("step", "step:b#1", name="b", args=[])))
    assert [event.key for event in await service.events()] == ["", "step:a#1"]


async def test_a_delivery_that_ends_without_a_turn_is_followed_by_another(service: RunService) -> None:
    lease = await leased(service)
    await service.acked(lease)
    again = await leased(service)
    assert again.generation > lease.generation
    with pytest.raises(TurnLost):
        await service.turn(lease, turn(lease, 1, 1, 1, item(1)))
    assert (await service.turn(again, turn(again, 1, 1, 1, item(1)))).parked


async def test_a_step_keeps_the_run_awake_until_its_result_is_written(service: RunService) -> None:
    lease = await leased(service)
    answer = await service.turn(lease, turn(lease, 1, 1, 1, command("step", "step:a#1", name="a", args=[])))
    assert not answer.parked and not answer.ended
    result = {"key": "step:a#1", "state": "succeeded", "output": {"n": 1}}
    answer = await service.turn(lease, turn(lease, 2, 2, 1, results=[result]))
    assert not answer.parked and [event.output for event in answer.events] == [{"n": 1}]
    with pytest.raises(Diverged, match="none that the run waits for"):
        await service.turn(lease, turn(lease, 3, 3, 3, results=[result]))
    assert (await service.turn(lease, turn(lease, 3, 3, 3))).parked
    assert len(await service.events()) == 3


async def test_a_run_shows_publishes_marks_and_ends(service: RunService) -> None:
    lease = await leased(service)
    done = [
        command("publish", "state", value={"at": "door"}),
        command("publish", "state", value="gone"),
        command("marker", "marker:new"),
        item(1),
        command("end", state="succeeded", output=[1, 2]),
    ]
    with pytest.raises(Diverged):
        await service.turn(lease, turn(lease, 1, 1, 1, *done))
    done[1] = command("publish", "other", value="gone")
    answer = await service.turn(lease, turn(lease, 1, 1, 1, *done))
    assert answer.ended
    shown = await service.shown()
    assert (shown["state"], shown["output"]) == ("succeeded", [1, 2])
    assert shown["published"] == {"state": {"at": "door"}, "other": "gone"}
    with pytest.raises(RunFinished):
        await service.turn(lease, turn(lease, 2, 6, 1, item(2)))
    assert await service.turn(lease, turn(lease, 1, 1, 1, *done)) == answer
    await service.acked(lease)
    assert await service.lease() is None


REFUSED = {
    "an older generation": lambda lease: turn(lease._replace(generation=lease.generation - 1), 1, 1, 1, item(1)),
    "a newer generation": lambda lease: turn(lease._replace(generation=99), 1, 1, 1, item(1)),
    "another secret": lambda lease: turn(lease._replace(secret="f" * 32), 1, 1, 1, item(1)),
    "no turn yet": lambda lease: turn(lease, 2, 1, 1, item(1)),
    "a turn long ago": lambda lease: turn(lease, 99, 1, 1, item(1)),
    "an event to come": lambda lease: turn(lease, 1, 1, 9, item(1)),
    "after an event to come": lambda lease: turn(lease, 1, 1, 1, item(1, after=2)),
    "the same twice": lambda lease: turn(lease, 1, 1, 1, item(1), item(1)),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_turn_that_does_not_fit_writes_nothing(service: RunService, name: str) -> None:
    lease = await leased(service)
    if name == "an older generation" and lease.generation == 1:
        await service.acked(lease)
        lease = await leased(service)
    before = await service.events()
    with pytest.raises((TurnLost, Diverged)):
        refused = REFUSED[name](lease)
        await service.turn(Lease(lease.run, refused.generation, refused.secret), refused)
    assert await service.events() == before
    assert (await service.turn(lease, turn(lease, 1, 1, 1, item(1)))).parked


async def test_what_is_asked_for_again_is_refused(service: RunService) -> None:
    lease = await leased(service)
    await service.turn(lease, turn(lease, 1, 1, 1, item(1)))
    await service.acked(lease)
    await service.finish("pack#1")
    awake = await leased(service)
    for again in (item(1, after=3), item(2, after=1)):
        with pytest.raises(Diverged):
            await service.turn(awake, turn(awake, 2, 3, 3, again))
    assert (await service.turn(awake, turn(awake, 2, 3, 3, item(2, after=3)))).parked


async def test_signals_are_taken_once_each_and_in_order(service: RunService) -> None:
    lease = await leased(service)
    await service.turn(lease, turn(lease))
    await service.acked(lease)
    assert await service.signal("go", 1, "a") and not await service.signal("go", 2, "a")
    assert await service.signal("go", 3, "b") and await service.signal("stop", None, "c")
    events = (await service.events())[1:]
    assert [(event.key, event.data["id"], event.data.get("data")) for event in events] == [
        ("signal:go#1", "a", 1),
        ("signal:go#2", "b", 3),
        ("signal:stop#1", "c", None),
    ]


async def test_a_run_that_is_stuck_says_so_comes_again_and_goes_on_when_it_is_resumed(service: RunService) -> None:
    lease = await leased(service)
    stuck = {"code": "never_yields", "error": "line 7"}
    answer = await service.turn(lease, Turn(lease.generation, lease.secret, 1, 0, 0, stuck=stuck))
    assert answer.parked
    await service.acked(lease)
    assert (await service.shown())["stuck"] == "never_yields"
    assert len(await service.events()) == 1
    await service.resume()
    again = await leased(service)
    assert (await service.turn(again, turn(again, 2, 1, 1, item(1)))).parked
    assert (await service.shown())["stuck"] is None


async def order(wf: Workflow, cart: dict[str, Any]) -> dict[str, Any]:
    packed = await asyncio.gather(*(wf.call("pack", number) for number in range(cart["items"])))
    try:
        await wf.call("ship", "box")
    except NodeFailed as error:
        wf.publish("state", error.state)
    counted = await wf.run(len, packed)
    word = await wf.receive("word")
    return {"packed": packed, "counted": counted, "word": word}


async def test_the_same_code_comes_to_the_same_end(service: RunService) -> None:
    """The SDK's driver, with a core that is dropped each time and one that is kept."""
    drivers = [Driver({TYPE: order}, service) for _ in range(2)]
    await drive(service, drivers[0])
    await service.finish("pack#2", output="b")
    await drive(service, drivers[1])
    await service.finish("pack#1", output="a")
    await drive(service, drivers[1])
    await service.signal("word", "early")
    await drive(service, drivers[0])
    await service.finish("ship#1", "failed")
    await drive(service, drivers[1])
    shown = await service.shown()
    assert shown == {
        "state": "succeeded",
        "parked": False,
        "output": {"packed": ["a", "b"], "counted": 2, "word": "early"},
        "published": {"state": "failed"},
        "stuck": None,
    }
    replay({"events": [event.body() for event in await service.events()]}, order)


async def test_a_cancel_is_told_and_cleanup_may_await(service: RunService) -> None:
    async def tidy(wf: Workflow, cart: Any) -> None:
        try:
            await wf.call("pack")
        finally:
            await wf.call("tidy-up")

    driver = Driver({TYPE: tidy}, service)
    await drive(service, driver)
    await service.cancel("enough")
    await drive(service, driver)
    assert [event.data for event in await service.events() if event.state == "cancel_requested"] == [
        {"reason": "enough"}
    ]
    await service.finish("tidy-up#1")
    await drive(service, driver)
    assert (await service.shown())["state"] == "cancelled"
