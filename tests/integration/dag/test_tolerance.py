"""Nodes whose failure is tolerated: their DAG's end, what cancels the rest, retries, cleanup and parents."""

from typing import Any

import pytest

from tests.support.dag_world import DagWorld


def tolerated(key: str, *upstream: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "tolerate": True, **({"upstream": list(upstream)} if upstream else {}), **more}


async def ended(world: DagWorld, nodes: list[dict[str, Any]], *dying: str, **more: Any) -> str:
    """A DAG that has run to its end."""
    dag = await world.create(nodes, **more)
    await world.settle()
    while ready := world.queue.deliverable():
        for key in ready:
            (world.queue.die if key in dying else world.queue.ack)(key)
        await world.settle()
    return dag


@pytest.mark.parametrize("on_failure", ["continue", "cancel"])
async def test_a_tolerated_failure_fails_no_dag_and_cancels_nothing(world: DagWorld, on_failure: str) -> None:
    nodes = [
        tolerated("probe"),
        {"key": "mend", "upstream": ["probe"], "trigger": "any_failed"},
        {"key": "after", "upstream": ["probe"], "trigger": "all_done"},
        {"key": "only if well", "upstream": ["probe"]},
        {"key": "other"},
    ]
    dag = await ended(world, nodes, "probe", on_failure=on_failure)
    assert await world.states(dag) == {
        "probe": "failed",
        "mend": "succeeded",
        "after": "succeeded",
        "only if well": "skipped",
        "other": "succeeded",
    }
    found = await world.dag(dag)
    assert (found["state"], found["nodes"]["failed"]) == ("succeeded", 1)
    node = await world.node(dag, "probe")
    assert (node["tolerate"], node["error"]) == (True, "boom")
    assert (await world.node(dag, "other"))["tolerate"] is False


async def test_a_handled_failure_that_is_not_tolerated_fails_its_dag(world: DagWorld) -> None:
    nodes = [{"key": "a"}, {"key": "mend", "upstream": ["a"], "trigger": "any_failed"}]
    assert (await world.dag(await ended(world, nodes, "a")))["state"] == "failed"


async def test_one_that_is_not_tolerated_beside_one_that_is_fails_its_dag(world: DagWorld) -> None:
    dag = await ended(world, [tolerated("a"), {"key": "b"}], "a", "b")
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry", {"nodes": ["b"]})
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_tolerated_failure_can_be_retried_and_fail_again(world: DagWorld) -> None:
    dag = await ended(world, [tolerated("a"), {"key": "b"}], "a")
    for outcome in (world.queue.die, world.queue.ack):
        await world.verb(dag, "retry")
        await world.settle()
        assert world.queue.deliverable() == ["a"]
        outcome("a")
        await world.settle()
        assert (await world.dag(dag))["state"] == "succeeded"
    assert (await world.call("POST", f"/{dag}/retry", {}, expect=409))["code"] == "nothing_to_retry"


async def test_an_external_that_fails_a_tolerated_node_is_tolerated_too(world: DagWorld) -> None:
    dag = await world.create([tolerated("a", external=["go"]), {"key": "b"}], on_failure="cancel")
    await world.settle()
    await world.verb(dag, "resolve", {"external": [{"node": "a", "name": "go", "failed": True}]})
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "succeeded"}
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_nothing_is_undone_for_a_tolerated_failure_and_cleanup_runs_as_after_a_success(
    world: DagWorld,
) -> None:
    nodes = [
        {"key": "a"},
        {"key": "undo", "compensates": "a"},
        tolerated("b", "a"),
        {"key": "well", "run_on": "succeeded"},
    ]
    dag = await ended(world, nodes, "b")
    assert (await world.states(dag)) == {"a": "succeeded", "undo": "skipped", "b": "failed", "well": "succeeded"}
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_sub_dag_may_be_tolerated_and_tolerate_within(world: DagWorld) -> None:
    inner = {"nodes": [{"key": "x", "topic": "work", "tolerate": True}, {"key": "y", "topic": "work"}]}
    made = await world.call(
        "POST",
        "",
        {"nodes": [{"key": "well", "dag": inner}, {"key": "ill", "dag": inner, "tolerate": True}]},
        expect=201,
    )
    await world.settle()
    ill = (await world.node(made["id"], "ill"))["dag"]
    for item in world.queue.ready():
        dies = item.node == "x" or item.body["ack_context"]["dag"] == ill
        world.queue.end(item, *(("dead",) if dies else ("acked",)))
    await world.settle()
    assert await world.states(made["id"]) == {"well": "succeeded", "ill": "failed"}
    assert (await world.dag(made["id"]))["state"] == "succeeded"


async def test_tolerance_is_part_of_what_a_node_is_and_no_matter_of_cleanup(world: DagWorld) -> None:
    dag = await world.create([tolerated("a")], open=True)
    await world.add(dag, [tolerated("a")])
    assert (await world.add(dag, [{"key": "a"}], expect=409))["code"] == "node_exists"
    for cleanup in ({"run_on": "always"}, {"compensates": "a"}):
        answer = await world.add(dag, [tolerated("c", **cleanup)], expect=422)
        assert answer["errors"][0]["pointer"] == "/nodes/0/tolerate"
