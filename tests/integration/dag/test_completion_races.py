"""Ends of nodes and what follows from them: PROTOCOL 13, 14, 15."""

import asyncio
from typing import Any

import pytest

from shared.errors import ShardUnavailable
from tests.support.clocks import ManualClock
from tests.support.dag_world import DagWorld
from tests.support.locks import locked


async def test_r3_a_release_that_nobody_sent_is_sent_when_it_is_overdue(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    sending = world.duties.context.dispatch
    world.duties.context.dispatch = lambda _shard, _sends: None
    world.queue.ack("a")
    await world.settle()
    assert (await world.states(dag))["b"] == "released"
    assert world.queue.deliverable() == []
    world.duties.context.dispatch = sending
    await world.sweep()
    assert world.queue.deliverable() == ["b"]
    assert not await world.rows("SELECT * FROM outbox")


async def test_r3_a_queue_that_is_away_is_told_later(world: DagWorld) -> None:
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.down = {"revive"}
    world.queue.ack("a")
    await world.settle()
    assert len(await world.rows("SELECT * FROM outbox")) == 1
    world.queue.down = set()
    await world.sweep()
    assert world.queue.deliverable() == ["b"]


async def test_rows_that_are_on_their_way_are_not_written_again_for_being_late(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(wall=True)
    monkeypatch.setattr(world.duties.context, "clock", clock)
    await world.create({"a": [], **{f"b{n}": ["a"] for n in range(world.settings.bulk_sends_min)}})
    await world.settle()
    await world.loops.relay.step(world.shard)
    async with world.queue.hold("revive") as hold:
        world.queue.ack("a")
        settling = asyncio.create_task(world.settle())
        await hold.reached()
        connection = await world.looking_at(world.shard)
        await connection.execute("UPDATE outbox SET due_at = shard_now()")
        assert await world.loops.relay.step(world.shard) == 0
        assert await world.rows("SELECT * FROM outbox WHERE tries > 0") == []
        clock.advance(world.settings.retry_s_max)
        assert await world.loops.relay.step(world.shard) == world.settings.bulk_sends_min
        assert await world.loops.relay.step(world.shard) == 0
    await settling
    assert len(world.queue.deliverable()) == world.settings.bulk_sends_min


async def test_r4_a_release_told_twice_or_late_has_no_further_effect(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.lose_answers = {"revive"}
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"]
    await world.sweep()
    world.queue.lose_answers = set()
    world.queue.ack("b")
    await world.sweep()
    assert world.queue.delivered == [("a", 1), ("b", 1)]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert not await world.rows("SELECT * FROM outbox")


async def test_a_release_whose_item_never_landed_drives_the_item(world: DagWorld) -> None:
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    lost = world.queue.item_of("b").body["id"]
    del world.queue.items[lost]
    world.queue.ack("a", output=1)
    await world.settle()
    assert world.queue.deliverable() == ["b"]
    assert world.queue.item_of("b").body["id"] == lost


async def test_a_disabled_item_that_lands_while_its_release_is_driven_is_revived(world: DagWorld) -> None:
    """revive says `not_found`, and before our enqueue comes the disabled one lands: `duplicate` is no success."""
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    item = world.queue.item_of("b")
    del world.queue.items[item.body["id"]]
    async with world.queue.hold("enqueue") as hold:
        world.queue.ack("a")
        pumping = asyncio.create_task(world.settle())
        await hold.reached()
        world.queue.items[item.body["id"]] = item
        hold.released.set()
        await pumping
    assert world.queue.deliverable() == ["b"]


async def test_an_item_lost_in_a_long_outage_is_made_anew_once_completions_are_applied(world: DagWorld) -> None:
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
    await world.settle()
    lost = world.queue.item_of("b").body["id"]
    del world.queue.items[lost]
    world.queue.too_old = {lost}
    world.queue.ack("a")
    await world.settle()
    await world.sweep()
    await world.sweep()
    item = world.queue.item_of("b")
    assert (item.state, item.generation, item.body["id"] != lost) == ("ready", 2, True)
    world.queue.ack("b")
    await world.settle()
    assert world.queue.deliverable() == ["c"]
    assert (await world.node(dag, "b"))["generation"] == 2


async def test_an_item_that_ended_in_a_long_outage_is_not_run_again(world: DagWorld) -> None:
    """The queue has forgotten the item, since it ended long ago: its completion still waits, and counts."""
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.lose_answers = {"revive"}
    world.queue.ack("a")
    await world.settle()
    item_id = world.queue.item_of("b").body["id"]
    world.queue.ack("b")
    del world.queue.ended[item_id]
    world.queue.too_old = {item_id}
    world.queue.lose_answers = set()
    connection = await world.connect()
    for _ in range(3):
        await connection.execute("UPDATE outbox SET due_at = shard_now()")
        await world.loops.relay.step(world.shard)
        await world.loops.relay.idle()
    await connection.close()
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.node(dag, "b"))["generation"] == 1
    assert world.queue.items == {}


@pytest.mark.parametrize("of_the_dag", [True, False])
async def test_a_cancel_of_an_item_that_the_queue_has_forgotten_confirms_nothing_before_its_end_is_applied(
    world: DagWorld, of_the_dag: bool
) -> None:
    """It was acked so long ago that its record has rotated away; its completion still waits, and counts."""
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create(
        [{"key": "a"}, {"key": "undo", "compensates": "a"}, {"key": "b"}], on_failure="cancel"
    )
    await world.settle()
    item_id = world.queue.item_of("a").body["id"]
    world.queue.ack("a", output="kept")
    del world.queue.ended[item_id]
    world.queue.too_old = {item_id}
    if of_the_dag:
        await world.verb(dag, "cancel", expect=202)
    else:
        await world.verb(dag, "nodes/cancel", {"nodes": ["a"]}, expect=202)
        world.queue.die("b")
    await world.loops.walker.step(world.shard)
    await world.loops.relay.idle()
    assert (await world.states(dag))["a"] == "released", "nobody knows yet how it ended"
    connection = await world.connect()
    for _ in range(2):
        await connection.execute("UPDATE outbox SET due_at = shard_now()")
        await world.loops.relay.step(world.shard)
        await world.loops.relay.idle()
    await connection.close()
    await world.settle()
    node = await world.node(dag, "a")
    assert (node["state"], node["output"]) == ("succeeded", "kept")
    assert world.queue.deliverable() == ["undo"]
    world.queue.ack("undo")
    await world.settle()
    assert (await world.dag(dag))["state"] == ("cancelled" if of_the_dag else "failed")
    assert await world.rows("SELECT FROM outbox") == []


async def test_a_cancel_of_an_item_that_never_came_is_confirmed_in_the_end(world: DagWorld) -> None:
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create({"a": [], "b": []})
    await world.settle()
    lost = world.queue.item_of("a").body["id"]
    del world.queue.items[lost]
    world.queue.too_old = {lost}
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert (await world.dag(dag))["state"] == "cancelling"
    await world.sweep()
    assert (await world.dag(dag))["state"] == "cancelled"
    assert await world.rows("SELECT FROM outbox") == []


async def test_what_could_not_be_applied_is_not_taken_as_drained(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of a large DAG is applied beside the others; its fault is the drain's."""
    world.settings.__dict__["bulk_endings_min"] = 1
    await world.create({"a": []})
    await world.settle()
    world.queue.ack("a")

    async def apply(*_: Any) -> int:
        raise ShardUnavailable("away")

    with monkeypatch.context() as patched, pytest.raises(ShardUnavailable):
        patched.setattr(world.duties.completer, "apply", apply)
        await world.loops.results[world.shard.number].drain()


async def test_r6_a_completion_that_comes_again_counts_once(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["a", "b"]})
    await world.settle()
    body = world.queue.item_of("a").body
    world.queue.ack("a")
    world.queue.complete(body, "acked")
    await world.settle()
    world.queue.complete(body, "acked")
    world.queue.complete(body, "dead", error="late")
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "released", "c": "blocked"}
    await world.audit()


async def test_r7_two_last_upstreams_that_end_at_once_release_their_child_once(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "c": ["a", "b"]})
    await world.settle()
    endings = []
    for key in ("a", "b"):
        world.queue.ack(key)
        [completion] = await world.queue.take("acks/000", 1, wait_s=0, lease_s=5)
        endings.append(completion)
    async with locked(world, dag) as until_waiting:
        applying = [asyncio.create_task(_apply(world, completion)) for completion in endings]
        await until_waiting(2)
    await asyncio.gather(*applying)
    await world.settle()
    assert world.queue.deliverable() == ["c"]
    revived = [elements for verb, _, elements in world.queue.calls if verb == "revive"]
    assert [len(elements) for elements in revived] == [1]


async def _apply(world: DagWorld, completion: Any) -> None:
    from services.dag.duties.completion_poll import ending_of

    ending = ending_of(completion.payload)
    assert ending is not None
    await world.duties.completer.apply(world.shard, [ending])


async def test_a_node_may_end_and_be_a_child_in_one_batch(world: DagWorld) -> None:
    """Its own end and its upstream's come together, as after an outage: both count."""
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
    await world.settle()
    body = world.queue.item_of("b").body
    world.queue.ack("a")
    world.queue.complete(body, "acked")
    await world.settle()
    states = await world.states(dag)
    assert states == {"a": "succeeded", "b": "succeeded", "c": "released"}


async def test_completions_of_many_dags_are_applied_together(world: DagWorld) -> None:
    dags = [await world.create({"a": [], "b": ["a"]}) for _ in range(10)]
    await world.settle()
    for _ in dags:
        world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"] * 10
    assert sum(1 for verb, _, _ in world.queue.calls if verb == "revive") <= 4


async def test_completions_that_mean_nothing_hold_up_nobody(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    ours = world.queue.item_of("a").body
    for context in (
        None,
        {},
        {"dag": "x", "node": "a", "generation": 1},
        {"dag": dag, "node": 5, "generation": 1},
        {"dag": dag, "node": "zz", "generation": 1},
        {"dag": dag, "node": "a", "generation": True},
        {"dag": dag, "node": "a", "generation": 7},
        {"dag": dag[:-3] + "fff", "node": "a", "generation": 1},
        {"dag": "01890000-0000-7000-8000-000000000000", "node": "a", "generation": 1},
    ):
        world.queue.put_completion("acks/000", {"outcome": "acked", "attempt": 1, "ack_context": context})
    world.queue.put_completion("acks/000", "junk")
    world.queue.put_completion("acks/000", {"outcome": "vanished", "ack_context": ours["ack_context"]})
    world.queue.ack("a")
    await world.settle()
    assert world.queue.deliverable() == ["b"]


async def test_a_completion_that_cannot_be_stored_is_set_aside_and_the_others_go_on(world: DagWorld) -> None:
    world.settings.__dict__["completion_attempts_max"] = 3
    dag = await world.create({"a": [], "b": [], "c": ["a"]})
    await world.settle()
    poison = world.queue.item_of("b")
    world.queue.complete(poison.body, "acked", output="nul \x00 in text", error="\x00")
    world.queue.ack("a")
    await world.settle()
    assert (await world.states(dag))["c"] == "released"
    assert [completion.attempt for completion in world.queue.final_nacks] == [3]
    assert (await world.states(dag))["b"] == "released"


async def test_a_walk_stops_when_its_node_has_moved_on(world: DagWorld) -> None:
    world.settings.__dict__["edges_per_step_max"] = 3
    children = {f"c{i}": ["f"] for i in range(9)}
    dag = await world.create({"f": [], **children})
    await world.settle()
    world.queue.die("f")
    await world.loops.results[0].drain()
    assert await world.rows("SELECT * FROM spread")
    await world.verb(dag, "retry")
    assert not await world.rows("SELECT * FROM spread WHERE node_no IN (SELECT no FROM node WHERE key = 'f')")
    await world.settle()
    await world.audit()
    assert world.queue.deliverable() == ["f"]
    world.queue.ack("f")
    await world.settle()
    assert sorted(world.queue.deliverable()) == sorted(children)


async def test_a_walk_left_over_from_an_older_generation_is_void(world: DagWorld) -> None:
    dag = await world.create({"f": [], "c": ["f"]})
    await world.settle()
    world.queue.die("f")
    await world.settle()
    await world.verb(dag, "retry")
    connection = await world.connect()
    await connection.execute("INSERT INTO spread SELECT no, 1, -1 FROM node WHERE key = 'f'")
    await connection.close()
    await world.settle()
    assert not await world.rows("SELECT * FROM spread")
    assert await world.states(dag) == {"f": "released", "c": "blocked"}


async def test_acks_and_deletions_of_several_steps_go_together_and_before_the_process_leaves(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for them; what is still gathered when the process leaves is done then."""
    monkeypatch.setattr("services.dag.duties.completion_poll.ACKS_GATHER_S", 3600.0)
    monkeypatch.setattr("services.dag.duties.relay.DELETES_GATHER_S", 3600.0)
    await world.create({"a": [], "b": ["a"], "c": ["b"]})
    for key in ("a", "b"):
        while not any(item.node == key and item.state == "ready" for item in world.queue.items.values()):
            await asyncio.sleep(0.001)
        world.queue.ack(key)
        await world.loops.results[0].drain()
    assert not [call for call in world.queue.calls if call[0] == "done"]
    assert len(await world.rows("SELECT FROM outbox")) >= 2

    await world.loops.results[0].close()
    await world.loops.relay.close()
    assert [len(call[2]) for call in world.queue.calls if call[0] == "done"] == [2]
    assert await world.rows("SELECT FROM outbox") == []
