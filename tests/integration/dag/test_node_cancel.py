"""Cancel of single nodes: what is confirmed, what wins, what becomes of the nodes below."""

import asyncio
from typing import Any

from services.dag.model import Send
from tests.support.dag_world import DagWorld
from tests.support.locks import locked


async def cancel(world: DagWorld, dag: str, *keys: str, expect: int, **more: Any) -> dict[str, str]:
    answer = await world.verb(dag, "nodes/cancel", {"nodes": list(keys), **more}, expect=expect)
    return {result["key"]: result["status"] for result in answer["results"]}


async def test_a_cancelled_blocked_node_ends_at_once_and_its_children_are_decided(world: DagWorld) -> None:
    nodes = [
        {"key": "a"},
        {"key": "b", "upstream": ["a"]},
        {"key": "skipped", "upstream": ["b"]},
        {"key": "done", "upstream": ["b"], "trigger": "all_done"},
    ]
    dag = await world.create(nodes)
    await world.settle()
    assert await cancel(world, dag, "b", expect=200, reason="no need") == {"b": "cancelled"}
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "cancelled", "skipped": "skipped", "done": "released"}
    assert (await world.node(dag, "b"))["error"] == "no need"
    assert sorted(world.queue.deliverable()) == ["a", "done"]
    assert {item.node for item in world.queue.items.values()} == {"a", "done"}
    world.queue.ack("a")
    world.queue.ack("done")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_released_node_is_cancelled_only_when_the_queue_has_confirmed_it(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": []})
    await world.settle()
    world.queue.down = {"cancel"}
    assert await cancel(world, dag, "a", expect=202, reason="stop") == {"a": "cancelling"}
    await world.settle()
    assert (await world.states(dag))["a"] == "released"
    assert await cancel(world, dag, "a", expect=202) == {"a": "cancelling"}
    world.queue.down = set()
    await world.sweep()
    assert await world.states(dag) == {"a": "cancelled", "b": "skipped", "c": "released"}
    assert (await world.node(dag, "a"))["error"] == "stop"
    assert await cancel(world, dag, "a", expect=200) == {"a": "already_cancelled"}
    assert world.queue.deliverable() == ["c"]


async def test_an_ack_that_comes_before_the_confirmation_wins(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.ack("a", output=1)
    assert await cancel(world, dag, "a", expect=202, reason="stop") == {"a": "cancelling"}
    await world.settle()
    assert await world.states(dag) == {"a": "succeeded", "b": "released"}
    assert (await world.node(dag, "a"))["error"] is None
    assert await cancel(world, dag, "a", expect=200) == {"a": "finished"}


async def test_a_cancel_that_overtakes_the_release_keeps_the_item_from_appearing(world: DagWorld) -> None:
    async with world.queue.hold("enqueue") as hold:
        dag = await world.create({"a": []})
        await hold.reached()
        assert await cancel(world, dag, "a", expect=202) == {"a": "cancelling"}
        async with asyncio.timeout(60):
            while (await world.states(dag))["a"] != "cancelled":
                await asyncio.sleep(0.001)
        hold.released.set()
        await world.settle()
    assert world.queue.items == {}
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_cancel_and_the_end_of_the_last_upstream_make_a_sequence(world: DagWorld) -> None:
    """Whichever has the lock first: the node is cancelled, and nothing of it is delivered afterwards."""
    for first in ("cancel", "end"):
        dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
        await world.settle()
        world.queue.ack("a")
        expect = 200 if first == "cancel" else 202
        steps = {
            "cancel": world.verb(dag, "nodes/cancel", {"nodes": ["b"]}, expect=expect),
            "end": world.loops.results[0].drain(),
        }
        order = ["cancel", "end"] if first == "cancel" else ["end", "cancel"]
        tasks = []
        async with locked(world, dag) as until_waiting:
            for i, name in enumerate(order):
                tasks.append(asyncio.create_task(steps[name]))
                await until_waiting(i + 1)
        await asyncio.gather(*tasks)
        await world.settle()
        assert await world.states(dag) == {"a": "succeeded", "b": "cancelled", "c": "skipped"}
        assert world.queue.items == {}


async def test_a_call_that_names_an_unknown_node_cancels_none(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    answer = await world.verb(dag, "nodes/cancel", {"nodes": ["a", "x"]}, expect=422)
    assert (answer["code"], answer["errors"][0]["pointer"]) == ("unknown_node", "/nodes/1")
    assert await world.states(dag) == {"a": "released"}


async def test_cancelled_nodes_stay_so_when_what_is_above_is_retried_unless_named(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["a"]})
    await world.settle()
    await cancel(world, dag, "b", expect=200)
    world.queue.die("a")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "cancelled", "c": "blocked"}
    await world.verb(dag, "retry", {"nodes": ["b"]})
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "blocked", "c": "blocked"}


async def test_a_cancelled_node_stays_so_when_what_a_failure_cancelled_is_retried(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": [], "x": ["b"]}, on_failure="cancel")
    await world.settle()
    await world.verb(dag, "nodes/cancel", {"nodes": ["x"]})
    world.queue.die("a")
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "cancelled", "x": "cancelled"}
    await world.verb(dag, "retry")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "released", "x": "cancelled"}


async def test_a_node_that_failed_in_spite_of_its_cancel_is_retried_with_all(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await cancel(world, dag, "a", expect=202)
    await world.settle()
    assert await world.states(dag) == {"a": "failed"}
    await world.verb(dag, "retry")
    assert await world.states(dag) == {"a": "released"}


async def test_in_a_dag_that_is_being_cancelled_the_queue_has_the_last_word(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    assert await cancel(world, dag, "a", "b", expect=202) == {"a": "cancelling", "b": "cancelling"}
    await world.settle()
    assert await world.states(dag) == {"a": "cancelled", "b": "cancelled"}
    assert await cancel(world, dag, "a", "b", expect=200) == {"a": "already_cancelled", "b": "already_cancelled"}


async def test_a_lost_item_of_a_node_to_be_cancelled_is_not_made_again(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    node = (await world.rows("SELECT no, item_id::text AS item_id FROM node"))[0]
    world.queue.down = {"cancel"}
    await cancel(world, dag, "a", expect=202)
    await world.settle()
    await world.duties.completer.renew(world.shard, Send(node["no"], 1, "enqueue", node["item_id"], "default"))
    assert (await world.node(dag, "a"))["generation"] == 1
    world.queue.down = set()
    await world.sweep()
    assert await world.states(dag) == {"a": "cancelled"}
