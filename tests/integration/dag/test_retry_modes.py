"""Retry from a node down, of all, and with other payloads: what runs again, what is kept, what is recounted."""

import asyncio
from typing import Any

import pytest

from tests.support.dag_world import DagWorld

DIAMOND: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "lone": []}


async def ended(world: DagWorld, nodes: Any, dying: tuple[str, ...] = (), **more: Any) -> str:
    """A DAG that has run to its end."""
    dag = await world.create(nodes, **more)
    await run_out(world, dying)
    return dag


async def run_out(world: DagWorld, dying: tuple[str, ...] = ()) -> list[str]:
    """Everything that can run, runs; in which order."""
    ran = []
    await world.settle()
    while ready := world.queue.deliverable():
        for key in ready:
            ran.append(key)
            (world.queue.die if key in dying else world.queue.ack)(key)
        await world.settle()
    return ran


async def generations(world: DagWorld, dag: str) -> dict[str, int]:
    page = await world.call("GET", f"/{dag}/nodes?limit=1000", expect=200)
    return {node["key"]: node["generation"] for node in page["items"]}


async def test_from_a_node_down_everything_runs_again_and_nothing_else(world: DagWorld) -> None:
    dag = await ended(world, DIAMOND)
    assert (await world.verb(dag, "retry", {"from": ["b"]}))["state"] == "running"
    assert await world.states(dag) == {
        "a": "succeeded",
        "b": "released",
        "c": "succeeded",
        "d": "blocked",
        "lone": "succeeded",
    }
    assert await run_out(world) == ["b", "d"]
    assert await generations(world, dag) == {"a": 1, "b": 2, "c": 1, "d": 2, "lone": 1}
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_all_runs_all_again_also_what_a_caller_skipped(world: DagWorld) -> None:
    dag = await world.create(DIAMOND)
    await world.settle()
    await world.verb(dag, "skip", {"nodes": ["c"]})
    await run_out(world)
    assert (await world.states(dag))["d"] == "skipped"
    await world.verb(dag, "retry", {"all": True})
    assert sorted(await run_out(world)) == sorted(DIAMOND)
    assert set((await generations(world, dag)).values()) == {2}


async def test_what_a_caller_skipped_stays_so_from_above(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    await world.settle()
    await world.verb(dag, "skip", {"nodes": ["b"]})
    await run_out(world)
    await world.verb(dag, "retry", {"from": ["a"]})
    assert await run_out(world) == ["a", "d"]
    assert (await world.states(dag))["b"] == "skipped"


async def test_what_a_caller_skipped_runs_by_its_name_with_what_was_skipped_below(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"], "d": ["a"]})
    await world.settle()
    await world.verb(dag, "skip", {"nodes": ["b"]})
    await run_out(world)
    assert (await world.dag(dag))["state"] == "succeeded"
    await world.verb(dag, "retry", {"nodes": ["b"]})
    assert await run_out(world) == ["b", "c"]
    assert await generations(world, dag) == {"a": 1, "b": 2, "c": 2, "d": 1}
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_what_its_trigger_skipped_is_not_run_by_naming_it(world: DagWorld) -> None:
    dag = await ended(world, {"a": [], "b": ["a"]}, dying=("a",))
    before = await world.dag(dag)
    assert (await world.verb(dag, "retry", {"nodes": ["b"]}, expect=409))["code"] == "nothing_to_retry"
    assert await world.dag(dag) == before
    await world.verb(dag, "retry", {"nodes": ["a", "b"]})
    assert await run_out(world) == ["a", "b"]


async def test_a_running_node_below_starts_anew_and_its_old_end_is_ignored(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "c": ["b"]})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    old = world.queue.item_of("b")
    await world.verb(dag, "retry", {"from": ["a"]})
    assert await world.states(dag) == {"a": "released", "b": "blocked", "c": "blocked"}
    world.queue.complete(old.body, "acked")
    await world.settle()
    assert (await world.states(dag))["b"] == "blocked"
    assert await run_out(world) == ["a", "b", "c"]
    assert [generation for node, generation in world.queue.delivered if node == "b"] == [2]


async def test_a_node_that_ran_by_any_succeeded_waits_anew(world: DagWorld) -> None:
    nodes = [{"key": "a"}, {"key": "b"}, {"key": "c", "upstream": ["a", "b"], "trigger": "any_succeeded"}]
    dag = await ended(world, nodes)
    await world.verb(dag, "retry", {"from": ["a", "b"]})
    assert (await world.states(dag))["c"] == "blocked"
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "succeeded", "c": "released"}


async def test_an_undecided_child_of_what_runs_again_is_recounted(world: DagWorld) -> None:
    nodes = [{"key": "a"}, {"key": "b"}, {"key": "c", "upstream": ["a", "b"]}]
    dag = await world.create(nodes)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert await world.states(dag) == {"a": "released", "b": "succeeded", "c": "blocked"}
    assert (await generations(world, dag))["c"] == 1


async def test_other_payloads_go_out_with_the_new_generation_and_stay(world: DagWorld) -> None:
    dag = await ended(world, [{"key": "a/~b", "payload": 1}, {"key": "c", "payload": 2}], dying=("a/~b",))
    await world.verb(dag, "retry", {"payloads": {"a/~b": {"fixed": [2**70, None]}}})
    await world.settle()
    assert world.queue.item_of("a/~b").body["payload"] == {"fixed": [2**70, None]}
    world.queue.die("a/~b")
    await world.settle()
    await world.verb(dag, "retry")
    await world.settle()
    assert world.queue.item_of("a/~b").body["payload"] == {"fixed": [2**70, None]}
    # The node is the same still: adding it again, as it was, changes nothing.
    await world.add(dag, [{"key": "a/~b", "payload": 1}])


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"nodes": ["a"], "from": ["a"]}, ""),
        ({"nodes": ["a"], "all": True}, ""),
        ({"from": ["a"], "all": True}, ""),
        ({"from": ["a", "x"]}, "/from/1"),
        ({"down_from": ["a"]}, "/down_from"),
        ({"all": 1}, "/all"),
        ({"payloads": {"b": 1}}, "/payloads/b"),
        ({"payloads": {"x/y": 1}}, "/payloads/x~1y"),
        ({"nodes": ["a"], "payloads": {"lone": 1}}, "/payloads/lone"),
    ],
)
async def test_what_cannot_be_retried_so_is_refused_and_changes_nothing(
    world: DagWorld, body: Any, pointer: str
) -> None:
    dag = await ended(world, {"a": [], "b": [], "lone": []}, dying=("a",))
    before = await world.rows("SELECT * FROM node ORDER BY no")
    answer = await world.verb(dag, "retry", body, expect=422)
    assert answer["errors"][0]["pointer"] == pointer
    assert await world.rows("SELECT * FROM node ORDER BY no") == before


async def test_a_payload_over_the_limit_is_413(world: DagWorld) -> None:
    dag = await ended(world, {"a": []}, dying=("a",))
    limit = world.settings.payload_bytes_max
    await world.verb(dag, "retry", {"payloads": {"a": "x" * (limit - 1)}}, expect=413)
    await world.verb(dag, "retry", {"payloads": {"a": "x" * (limit - 2)}})


async def test_nothing_to_run_again(world: DagWorld) -> None:
    dag = await ended(world, {"a": [], "b": ["a"]})
    for body in ({}, {"nodes": ["a"]}):
        assert (await world.verb(dag, "retry", body, expect=409))["code"] == "nothing_to_retry"
    running = await world.create({"a": [], "b": ["a"]})
    assert (await world.verb(running, "retry", {"from": ["b"]}, expect=409))["code"] == "nothing_to_retry"
    held = await world.create({"a": []}, hold=True)
    assert (await world.verb(held, "retry", {"all": True}, expect=409))["code"] == "nothing_to_retry"


async def test_what_the_policy_cancelled_comes_back_with_a_retry_from_a_node(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"], "other": []}, on_failure="cancel")
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert await world.states(dag) == {"a": "failed", "b": "cancelled", "other": "cancelled"}
    await world.verb(dag, "retry", {"from": ["a"]})
    assert sorted(await run_out(world)) == ["a", "b", "other"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_two_retries_at_once_begin_one_generation_each_in_turn(world: DagWorld) -> None:
    dag = await ended(world, DIAMOND)
    await asyncio.gather(*(world.verb(dag, "retry", {"from": ["a"]}, expect=expect) for expect in (200,)))
    assert (await world.verb(dag, "retry", {"from": ["b"]}, expect=409))["code"] == "nothing_to_retry"
    first, *siblings, last = await run_out(world)  # which of two siblings comes first is nobody's promise
    assert (first, sorted(siblings), last) == ("a", ["b", "c"], "d")


async def test_a_failed_external_is_asked_for_again_below_too(world: DagWorld) -> None:
    nodes = [{"key": "a"}, {"key": "b", "upstream": ["a"], "external": ["x", "y"]}]
    dag = await world.create(nodes)
    await world.verb(
        dag, "resolve", {"external": [{"node": "b", "name": "y"}, {"node": "b", "name": "x", "failed": True}]}
    )
    await run_out(world)
    assert await world.states(dag) == {"a": "succeeded", "b": "failed"}
    await world.verb(dag, "retry", {"from": ["a"]})
    await run_out(world)
    assert [block["name"] for block in (await world.node(dag, "b"))["blocked_by"]] == ["x"]
