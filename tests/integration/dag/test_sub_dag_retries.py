"""DAGs in the place of nodes that are retried by their own ids: the node goes along, once, whatever stops."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.dag.model import Parent, Retry, Send
from shared.errors import Unavailable
from tests.support.dag_world import DagWorld
from tests.support.databases import Databases
from tests.support.queue_fake import FakeQueue
from tests.support.sub_dags import (
    Between,
    Held,
    SlowReport,
    child_of,
    drained,
    failed,
    finish,
    item,
    refused,
    run_out,
    start,
    sub,
    two_shards,
    until,
)


@pytest.fixture
async def world(databases: Databases) -> AsyncIterator[DagWorld]:
    async with two_shards(databases) as made:
        yield made


async def test_a_failed_child_that_is_retried_by_itself_takes_its_node_along(world: DagWorld) -> None:
    inner = sub("low", {"x": [], "other": []})
    dag = await start(world, {"key": "mid", "dag": {"nodes": [inner]}}, item("z", "mid"))
    middle = await child_of(world, dag, "mid")
    low = await child_of(world, middle, "low")
    world.queue.die("x")
    world.queue.die("other")
    await world.settle()
    assert (await world.states(dag)) == {"mid": "failed", "z": "skipped"}
    assert "its DAG" in (await world.node(dag, "mid"))["error"]
    await world.verb(low, "retry", {"nodes": ["x"], "payloads": {"x": "mended"}})
    await world.settle()
    assert world.queue.item_of("x").body["payload"] == "mended"
    for each, key in ((dag, "mid"), (middle, "low")):
        node = await world.node(each, key)
        assert (node["state"], node["generation"]) == ("released", 2)
        assert (await world.dag(each))["state"] == "running"
    assert (await world.node(dag, "z"))["state"] == "blocked"
    assert await world.states(low) == {"x": "released", "other": "failed"}, "what nobody named stays as it is"
    world.queue.ack("x", output="late")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed", "the other one failed still"
    await world.verb(low, "retry")
    await world.settle()
    world.queue.ack("other")
    await world.settle()
    assert (await world.node(dag, "mid"))["output"] == {"low": {"x": "late"}}
    world.queue.ack("z")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"


@pytest.mark.parametrize("outcome", ["ack", "die"])
async def test_a_child_that_ends_again_while_its_first_end_is_being_told_is_believed(
    world: DagWorld, outcome: str
) -> None:
    """The row of the first end was carried, and is still there when the second one is written."""
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    slow = SlowReport(world)
    slow.read.set()
    world.queue.die("x")
    await drained(world)
    await slow.done.wait()
    await world.verb(child, "retry")

    async def again() -> bool:
        return world.queue.deliverable() == ["x"]

    await until(again)
    getattr(world.queue, outcome)("x")
    await drained(world)
    slow.delete.set()
    await world.settle()
    await world.sweep()
    ended = "succeeded" if outcome == "ack" else "failed"
    node = await world.node(dag, "mid")
    assert (node["state"], node["generation"], (await world.dag(dag))["state"]) == (ended, 2, ended)
    assert not world.queue.deliverable(), "a second failure is not tried again by itself"


@pytest.mark.parametrize("outcome", ["ack", "die"])
async def test_a_child_that_is_retried_before_its_end_was_told_ends_its_node_once(
    world: DagWorld, outcome: str
) -> None:
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    with Held(world):
        for generation in (2, 3):
            world.queue.die("x")
            await world.settle()
            await world.verb(child, "retry")
            await world.settle()
            node = await world.node(dag, "mid")
            assert (node["state"], node["generation"]) == ("released", generation)
        getattr(world.queue, outcome)("x")
        await world.settle()
    await world.sweep()
    ended = "succeeded" if outcome == "ack" else "failed"
    node = await world.node(dag, "mid")
    assert (node["state"], node["generation"], (await world.dag(dag))["state"]) == (ended, 3, ended)
    assert not world.queue.deliverable()


async def test_two_who_retry_a_child_at_once_retry_it_once(world: DagWorld) -> None:
    dag, child = await failed(world)

    async def another() -> None:
        assert (await world.verb(child, "retry", expect=503))["code"] == "unavailable"

    with Held(world), Between(world, another):
        await world.verb(child, "retry")
    assert (await world.verb(child, "retry", expect=409))["code"] == "nothing_to_retry"
    await world.sweep()
    assert (await world.node(dag, "mid"))["generation"] == 2
    await finish(world, dag, "x", "y", "z")


async def test_what_a_retry_of_the_node_lets_run_again_does_so_beside_a_retry_of_the_child(
    world: DagWorld,
) -> None:
    dag = await start(world, sub("mid", {"x": [], "other": []}))
    child = await child_of(world, dag, "mid")
    world.queue.die("x")
    world.queue.die("other")
    await world.settle()
    with Held(world):
        await world.verb(dag, "retry")
        await world.verb(child, "retry", {"nodes": ["x"]}, expect=503)
    await world.sweep()
    assert sorted(world.queue.deliverable()) == ["other", "x"]


@pytest.mark.parametrize("ends", ["carried", "refused"])
@pytest.mark.parametrize("levels", [1, 2])
async def test_a_child_is_retried_as_its_caller_asks_whoever_does_it(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch, ends: str, levels: int
) -> None:
    """Between the two the row is carried; or the child cannot be written, and the process ends. The node alone
    would have all of it run again that failed."""
    inner = sub("mid", {"x": [], "other": []})
    dag = await start(world, inner if levels == 1 else {"key": "top", "dag": {"nodes": [inner, item("w")]}})
    middle = dag if levels == 1 else await child_of(world, dag, "top")
    child = await child_of(world, middle, "mid")
    for key in ("x", "other", "w")[: levels + 1]:
        world.queue.die(key)
    await world.settle()

    async def away(*_: Any) -> None:
        raise Unavailable("the child's shard is away")

    async def stop() -> None:
        if ends == "carried":
            await world.settle()
        else:
            monkeypatch.setattr(world.duties.retrier, "_begin", away)

    wanted = {"nodes": ["x"], "payloads": {"x": "mended"}}
    held = Held(world)
    if ends == "refused":
        held.__enter__()
    with Between(world, stop):
        answer = await world.verb(child, "retry", wanted, expect=200 if ends == "carried" else 503)
    if ends == "refused":
        assert answer["outcome"] == "unknown", "it is done by the row"
        monkeypatch.undo()
        held.__exit__()
    await world.settle()
    await world.sweep()
    assert world.queue.deliverable() == ["x"]
    assert world.queue.item_of("x").body["payload"] == "mended"
    assert (await world.states(middle))["mid"] == "released"


@pytest.mark.parametrize("again", [False, True])
async def test_a_retry_of_a_grandchild_that_its_row_has_brought_to_an_end_does_not_begin_it_again(
    world: DagWorld, again: bool
) -> None:
    """The call stands still behind its first commit, and the DAG between goes on running for somebody else; what
    failed again is perhaps retried by another caller meanwhile (`again`)."""
    dag = await start(world, {"key": "top", "dag": {"nodes": [sub("mid", {"x": []}), item("beside")]}})
    middle = await child_of(world, dag, "top")
    low = await child_of(world, middle, "mid")
    world.queue.die("x")
    world.queue.die("beside")
    await world.settle()

    async def ended() -> None:
        await world.settle()
        assert world.queue.item_of("x").body["payload"] == "mended"
        await world.verb(middle, "retry", {"nodes": ["beside"]})
        world.queue.die("x")
        await world.settle()
        if again:
            await world.verb(low, "retry")

    with Between(world, ended, middle):
        answer = await world.verb(low, "retry", {"payloads": {"x": "mended"}})
    assert answer["state"] == ("running" if again else "failed"), "what was asked for was done, and failed again"
    await world.settle()
    await world.sweep()
    assert sorted(world.queue.deliverable()) == ["beside", *(["x"] if again else [])]
    found = [(await world.node(dag_id, key))["generation"] for dag_id, key in ((middle, "mid"), (low, "x"))]
    assert found == ([3, 3] if again else [2, 2])


@pytest.mark.parametrize("cleans", ["child", "middle"])
async def test_a_child_with_cleanup_takes_its_node_along(world: DagWorld, cleans: str) -> None:
    clean = {"key": "clean", "topic": "work", "run_on": "always"}
    inner = sub("mid", {"x": []})
    outer: dict[str, Any] = {"key": "top", "dag": {"nodes": [inner]}, "upstream": ["a"]}
    (inner if cleans == "child" else outer)["dag"]["nodes"].append(clean)
    dag = await start(world, item("a"), outer, item("z", "top"))
    world.queue.ack("a")
    await world.settle()
    middle = await child_of(world, dag, "top")
    low = await child_of(world, middle, "mid")
    world.queue.die("x")
    await world.settle()
    world.queue.ack("clean")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry", {"from": ["a"]})
    await refused(world, low, "parent_waits")
    world.queue.die("a")
    await run_out(world)
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    low = await child_of(world, await child_of(world, dag, "top"), "mid")
    world.queue.die("x")
    await world.settle()
    world.queue.ack("clean")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    await world.verb(low, "retry")
    assert await run_out(world) == ["x", "clean", "z"]
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_report_that_comes_when_its_dag_runs_again_says_nothing(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    kept: list[tuple[Any, Send]] = []

    async def keep(shard: Any, send: Send) -> None:
        kept.append((shard, send))

    world.loops.relay._sub_dags.carry, carry = keep, world.loops.relay._sub_dags.carry  # type: ignore[method-assign]
    world.queue.die("x")
    await world.settle()
    await world.verb(child, "retry")
    world.loops.relay._sub_dags.carry = carry  # type: ignore[method-assign]
    await world.settle()
    assert (await world.dag(child))["state"] == "running"
    for shard, send in kept:
        await carry(shard, send)
    assert (await world.node(dag, "mid"))["state"] == "released"
    world.queue.ack("x")
    await world.settle()
    await world.sweep()
    assert (await world.dag(dag))["state"] == "succeeded"


async def test_a_child_goes_on_once_for_each_generation_of_its_node(world: DagWorld) -> None:
    """Two carry the same row, and both have seen the child before the first one let it go on."""
    dag = await start(world, sub("mid", {"x": []}))
    child = await child_of(world, dag, "mid")
    world.queue.die("x")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["mid"]})
    await world.settle()
    world.queue.die("x")
    await world.settle()
    assert (await world.dag(child))["state"] == "failed"
    await world.duties.sub_dags._retrier.go_on("default", child, Retry(), Parent(dag, "mid", 2, 1))
    await world.settle()
    assert (await world.dag(child))["state"] == "failed"
    assert not world.queue.deliverable()


@pytest.mark.parametrize("stopped", ["before", "after"])
async def test_a_child_whose_node_has_to_wait_after_all_is_stopped_and_another_is_made(
    world: DagWorld, stopped: str
) -> None:
    """Its parent is retried from further up between the two, and says so to the child before that is retried, or
    after."""
    dag, child = await failed(world)
    held = Held(world)

    async def from_further_up() -> None:
        await world.verb(dag, "retry", {"from": ["a"]})
        if stopped == "before":
            held.__exit__()
            await world.sweep()

    held.__enter__()
    with Between(world, from_further_up):
        await world.verb(child, "retry")
    held.__exit__()
    await world.settle()
    await world.sweep()
    assert world.queue.deliverable() == ["a"], "what the child had begun is taken back, and nothing is early"
    assert (await world.states(dag))["mid"] == "blocked"
    assert (await world.dag(child))["state"] == ("failed" if stopped == "before" else "cancelled")
    await finish(world, dag, "a", "x", "y", "z")
    assert await child_of(world, dag, "mid") != child


@pytest.mark.parametrize("verb", ["skip", "nodes/cancel"])
async def test_a_child_whose_node_was_ended_meanwhile_is_stopped(world: DagWorld, verb: str) -> None:
    dag, child = await failed(world)

    async def ended() -> None:
        await world.verb(dag, "retry", {"from": ["a"]})
        await world.verb(dag, verb, {"nodes": ["mid"]})

    with Between(world, ended), Held(world):
        await world.verb(child, "retry")
        await world.settle()
    await world.sweep()
    assert world.queue.deliverable() == ["a"]
    assert (await world.dag(child))["state"] == "cancelled"


@pytest.mark.parametrize("when", ["between", "after"])
async def test_a_child_that_was_retried_before_its_parent_was_cancelled_does_not_outlive_that(
    world: DagWorld, when: str
) -> None:
    dag, child = await failed(world, item("w"))

    async def cancelled() -> None:
        await world.verb(dag, "cancel", expect=202)

    with Held(world):
        if when == "between":
            with Between(world, cancelled):
                await world.verb(child, "retry")
        else:
            await world.verb(child, "retry")
            await cancelled()
        await world.settle()
    await world.sweep()
    assert not world.queue.deliverable()
    assert (await world.dag(child))["state"] == (await world.dag(dag))["state"] == "cancelled"


@pytest.fixture
async def slow(databases: Databases) -> AsyncIterator[DagWorld]:
    """A service to which a retry of over three nodes is a large one."""
    database = await databases.create(queue_shards=1, dag_shards=2)
    made = DagWorld(database, FakeQueue(), retry_at_once_nodes_max=3, retry_step_nodes=2)
    try:
        yield made
        await made.audit()
    finally:
        await made.close()
        await databases.drop(database)


BELOW = [f"z{n}" for n in range(5)]
BESIDE = [f"b{n}" for n in range(5)]


async def test_a_child_whose_parent_is_reopened_in_steps_is_retried_there(slow: DagWorld) -> None:
    undo = {"key": "undo", "topic": "work", "compensates": "a"}
    dag, child = await failed(slow, undo, *[item(key, "z") for key in BELOW])
    slow.queue.ack("undo")
    await slow.settle()
    assert (await slow.verb(child, "retry", expect=409))["code"] == "parent_waits"
    await slow.verb(dag, "retry")
    assert await run_out(slow) == ["a", "x", "y", "z", *BELOW]
    assert (await slow.dag(dag))["state"] == "succeeded"
    assert await child_of(slow, dag, "mid") == child


async def test_a_child_whose_node_is_reopened_in_steps_meanwhile_is_stopped(slow: DagWorld) -> None:
    dag, child = await failed(slow, *[item(key, "a") for key in BESIDE])
    assert await run_out(slow) == BESIDE

    async def from_further_up() -> None:
        await slow.verb(dag, "retry", {"from": ["a"]})

    with Between(slow, from_further_up), Held(slow):
        await slow.verb(child, "retry")
        await slow.settle()
        slow.queue.ack("x")
        await slow.settle()
    assert await run_out(slow) == ["a", *BESIDE, "x", "y", "z"]
    assert await child_of(slow, dag, "mid") != child
    assert (await slow.dag(dag))["state"] == "succeeded"
