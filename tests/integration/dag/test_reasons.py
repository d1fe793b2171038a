"""Why a DAG, and each node that was cancelled with it, did not succeed: whatever came first stays told."""

from typing import Any

import pytest

from tests.support.dag_world import DagWorld

REASON = "its deadline of 60 s passed"


async def past_deadline(world: DagWorld, dag: str) -> None:
    connection = await world.looking_at(world.shard)
    await connection.execute("UPDATE dag SET deadline_at = shard_now() - interval '1 s' WHERE id = $1", dag)
    await world.loops.sweeper.step(world.shard)
    await world.settle()


async def told(world: DagWorld, dag: str) -> tuple[str, Any]:
    found = await world.dag(dag)
    return found["state"], found["reason"]


@pytest.mark.parametrize("first", ["completion", "answer"])
async def test_a_passed_deadline_is_the_reason_of_its_dag_and_the_error_of_what_it_cancelled(
    world: DagWorld, first: str
) -> None:
    """Whether the queue's answer to the cancel comes first, or the cancelled item's completion."""
    dag = await world.create({"a": [], "b": ["a"]}, deadline_s=60)
    await world.settle()
    if first == "completion":
        world.queue.lose_answers.add("cancel")
    await past_deadline(world, dag)
    world.queue.lose_answers.clear()
    await world.sweep()
    assert await told(world, dag) == ("failed", REASON)
    for key in ("a", "b"):
        node = await world.node(dag, key)
        assert (node["state"], node["error"]) == ("cancelled", f"the DAG was cancelled: {REASON}")


async def test_the_node_that_failed_is_the_reason_where_a_failure_cancels_the_rest(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "other": []}, on_failure="cancel")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    reason = 'node "a" failed, and on_failure is cancel'
    assert await told(world, dag) == ("failed", reason)
    assert (await world.node(dag, "a"))["error"] == "boom"
    assert (await world.node(dag, "other"))["error"] == f"the DAG was cancelled: {reason}"
    await world.verb(dag, "retry")
    assert await told(world, dag) == ("running", None)
    assert (await world.node(dag, "other"))["error"] is None


async def test_a_second_cancel_changes_nothing(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.down.add("cancel")
    await world.verb(dag, "cancel", {"reason": "the first"}, expect=202)
    await world.settle()
    answer = await world.verb(dag, "cancel", {"reason": "the second"}, expect=202)
    assert answer["reason"] == "the first"
    world.queue.down.clear()
    await world.sweep()
    assert (await world.verb(dag, "cancel", {"reason": "the third"}))["reason"] == "the first"
    assert await told(world, dag) == ("cancelled", "the first")
    assert (await world.node(dag, "a"))["error"] == "the DAG was cancelled: the first"


@pytest.mark.parametrize("reason", ["no need", None])
async def test_a_call_that_overrides_a_deadline_gives_its_own_reason_or_none(
    world: DagWorld, reason: str | None
) -> None:
    dag = await world.create({"a": []}, deadline_s=60)
    await world.settle()
    world.queue.down.add("cancel")
    await past_deadline(world, dag)
    assert await told(world, dag) == ("cancelling", REASON)
    await world.verb(dag, "cancel", {} if reason is None else {"reason": reason}, expect=202)
    world.queue.down.clear()
    await world.sweep()
    assert await told(world, dag) == ("cancelled", reason)


async def test_the_reason_of_a_nodes_own_cancel_stays_whatever_is_told_first(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []})
    await world.settle()
    world.queue.lose_answers.add("cancel")
    await world.verb(dag, "nodes/cancel", {"nodes": ["a"], "reason": "not this one"}, expect=202)
    await world.settle()
    world.queue.lose_answers.clear()
    await world.sweep()
    node = await world.node(dag, "a")
    assert (node["state"], node["error"]) == ("cancelled", "not this one")
    await world.verb(dag, "cancel", {"reason": "nor that"}, expect=202)
    await world.settle()
    assert (await world.node(dag, "a"))["error"] == "not this one"


async def test_an_ack_that_comes_before_the_cancel_leaves_no_error(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": []})
    await world.settle()
    world.queue.down.add("cancel")
    await world.verb(dag, "nodes/cancel", {"nodes": ["a"], "reason": "not this one"}, expect=202)
    world.queue.ack("a")
    await world.settle()
    world.queue.down.clear()
    await world.sweep()
    node = await world.node(dag, "a")
    assert (node["state"], node["error"]) == ("succeeded", None)


async def test_the_reason_of_a_sub_dag_is_told_to_its_node_and_the_other_way_round(world: DagWorld) -> None:
    inner = {"nodes": [{"key": "x", "topic": "work"}], "deadline_s": 60}
    made = await world.call("POST", "", {"nodes": [{"key": "mid", "dag": inner}]}, expect=201)
    await world.settle()
    child = (await world.node(made["id"], "mid"))["dag"]
    await past_deadline(world, child)
    error = (await world.node(made["id"], "mid"))["error"]
    assert error == f"its DAG {child} failed: {REASON}"
    made = await world.call("POST", "", {"nodes": [{"key": "mid", "dag": inner}]}, expect=201)
    await world.settle()
    child = (await world.node(made["id"], "mid"))["dag"]
    await world.verb(made["id"], "cancel", {"reason": "no need"}, expect=202)
    await world.settle()
    assert (await world.dag(child))["reason"] == f'node "mid" of DAG {made["id"]} was cancelled'
