"""A queue shard is drained and removed, or is down: what the queue was never given of a DAG goes elsewhere."""

from typing import Any

import pytest

from headgate._ids import shard_of
from tests.support.dag_world import DagWorld, specs


def by_shard(world: DagWorld) -> dict[str, int]:
    """On which shard each deliverable item is, by its node."""
    return {item.node: shard_of(item.body["id"]) for item in world.queue.ready()}


async def leave(world: DagWorld, shard: int = 0, *, removed: bool = True) -> None:
    """The queue's shard takes nothing more, and the service has seen it."""
    world.queue.shard_numbers.remove(shard)
    if removed:
        world.queue.removed.add(shard)
    await world.duties.context.look_for_homes()


async def run(world: DagWorld, *, dead: str = "") -> list[str]:
    """Ack all that is delivered, but let `dead` die once; the keys in their order."""
    order = []
    while ready := world.queue.deliverable():
        for key in ready:
            order.append(key)
            world.queue.die(key) if key == dead else world.queue.ack(key)
        dead = "" if dead in order else dead
        await world.settle()
    return order


GRAPH = [
    {"key": "a"},
    {"key": "b", "upstream": ["a"]},
    {"key": "c", "upstream": ["b"]},
    {"key": "undo a", "compensates": "a"},
    {"key": "clean", "run_on": "always"},
]


@pytest.mark.parametrize("removed", [True, False])
async def test_compensation_cleanup_and_retries_go_to_a_shard_that_takes_items(
    world: DagWorld, removed: bool
) -> None:
    dag = await world.create(GRAPH)
    await world.settle()
    assert by_shard(world) == {"a": 0}
    for key in ("a", "b"):
        world.queue.ack(key)
        await world.settle()
    world.queue.die("c")
    await world.settle()
    assert by_shard(world) == {"undo a": 0}, "where it is when the last item of the shard has gone"
    world.queue.ack("undo a")
    await world.settle()
    world.queue.ack("clean")
    await world.settle()
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    world.queue.ack("a")
    await leave(world, removed=removed)
    await world.settle()
    assert by_shard(world) == {"b": 1}
    assert await run(world, dead="c") == ["b", "c", "undo a", "clean"]
    assert {shard_of(i) for _, _, ids in world.queue.calls[-4:] for i in ids if isinstance(i, str)} <= {1}
    assert (await world.dag(dag))["state"] == "failed"
    assert {node["generation"] for node in (await world.call("GET", f"/{dag}/nodes"))["items"]} == {2}


async def test_a_cancel_ends_at_once_what_the_queue_was_never_given(world: DagWorld) -> None:
    dag = await world.create(GRAPH)
    await world.settle()
    assert await run(world, dead="c") == ["a", "b", "c", "undo a", "clean"]
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    world.queue.ack("a")
    await leave(world)
    await world.settle()
    asked = len([call for call in world.queue.calls if call[0] == "cancel"])
    world.queue.down.add("cancel")
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    assert (await world.states(dag))["c"] == "cancelled"
    world.queue.down.clear()
    await world.sweep()
    cancelled = [ids for verb, _, ids in world.queue.calls if verb == "cancel"][asked:]
    assert [shard_of(i) for ids in cancelled for i in ids] == [1], "of `b` alone, which had been given"
    assert await run(world) == ["undo a", "clean"]
    assert (await world.dag(dag))["state"] == "cancelled"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_released_to_a_shard_that_is_removed_then_is_made_anew(
    world: DagWorld, cancelled: bool
) -> None:
    """Also cleanup in a DAG that is being cancelled."""
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create([{"key": "a"}, {"key": "clean", "run_on": "always"}])
    await world.settle()
    world.queue.down.add("enqueue")
    if cancelled:
        await world.verb(dag, "cancel", expect=202)
    else:
        world.queue.ack("a")
    await world.settle()
    assert (await world.states(dag))["clean"] == "released"
    await leave(world)
    world.queue.down.clear()
    for _ in range(3):
        await world.sweep()
    assert by_shard(world) == {"clean": 1}
    assert (await world.node(dag, "clean"))["generation"] == 2
    assert await run(world) == ["clean"]
    assert (await world.dag(dag))["state"] == ("cancelled" if cancelled else "succeeded")
    assert await world.rows("SELECT FROM outbox") == []


async def test_a_cancel_of_what_a_removed_shard_held_is_confirmed(world: DagWorld) -> None:
    world.settings.__dict__["completion_lease_s"] = -1.0
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.items.clear()
    await leave(world)
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "cancelled"


async def test_an_add_whose_items_were_not_given_before_their_shard_was_removed_is_finished(
    world: DagWorld,
) -> None:
    world.queue.down.add("enqueue")
    body: dict[str, Any] = {"key": "once", "nodes": specs({"a": [], "b": ["a"]})}
    answer = await world.call("POST", "", body)
    assert answer["code"] == "add_unfinished"
    world.queue.down.clear()
    await leave(world)
    world.settings.__dict__["completion_lease_s"] = -1.0
    for _ in range(3):
        await world.sweep()
    assert by_shard(world) == {"a": 1}
    dag = (await world.call("POST", "", body))["id"]
    assert await run(world) == ["a", "b"]
    assert (await world.dag(dag))["state"] == "succeeded"
    assert {shard_of(item) for item in world.queue.ended} == {1}
    assert await world.rows("SELECT FROM adding") == []
