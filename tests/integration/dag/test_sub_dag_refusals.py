"""DAGs in the place of nodes that have ended, and are not retried by their own ids: what ran would be nobody's."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dag_world import DagWorld
from tests.support.databases import Databases
from tests.support.sub_dags import Held, child_of, failed, finish, item, refused, start, sub, two_shards


@pytest.fixture
async def world(databases: Databases) -> AsyncIterator[DagWorld]:
    async with two_shards(databases) as made:
        yield made


async def test_a_child_of_a_parent_that_was_cancelled_does_not_run_again(world: DagWorld) -> None:
    dag = await start(world, {"key": "top", "dag": {"nodes": [sub("mid", {"x": []})]}}, item("w"))
    low = await child_of(world, await child_of(world, dag, "top"), "mid")
    world.queue.die("x")
    await world.settle()
    await world.verb(dag, "cancel", expect=202)
    await world.settle()
    await refused(world, low)


async def test_a_child_whose_node_succeeded_is_run_again_by_that(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}), item("z", "mid"))
    child = await child_of(world, dag, "mid")
    world.queue.ack("x")
    await world.settle()
    await refused(world, child, all=True)
    await world.verb(dag, "retry", {"from": ["mid"]})
    await world.settle()
    await finish(world, dag, "x", "z")


async def test_a_child_above_which_a_failure_was_tolerated_is_run_again_from_there(world: DagWorld) -> None:
    top = {"key": "top", "dag": {"nodes": [sub("mid", {"x": []}) | {"tolerate": True}]}}
    dag = await start(world, top, item("z", "top"))
    child = await child_of(world, await child_of(world, dag, "top"), "mid")
    world.queue.die("x")
    await world.settle()
    assert world.queue.deliverable() == ["z"]
    await refused(world, child)
    await world.verb(dag, "retry", {"from": ["top"]})
    await world.settle()
    await finish(world, dag, "x", "z")


async def test_a_child_whose_node_is_skipped_or_has_another_does_not_run_again(world: DagWorld) -> None:
    dag, child = await failed(world)
    await world.verb(dag, "retry", {"from": ["a"]})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await world.states(dag))["mid"] == "skipped"
    await refused(world, child)
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    if (another := await child_of(world, dag, "mid")) != child:
        await refused(world, child)
    await finish(world, dag, "x", "y", "z")
    assert (await world.dag(another))["state"] == "succeeded"


@pytest.mark.parametrize("verb", ["skip", "nodes/cancel"])
async def test_a_child_whose_node_a_caller_has_ended_does_not_run_again(world: DagWorld, verb: str) -> None:
    dag, child = await failed(world)
    await world.verb(dag, "retry", {"from": ["a"]})
    await refused(world, child, "parent_waits")
    await world.verb(dag, verb, {"nodes": ["mid"]})
    await world.settle()
    await refused(world, child)
    assert world.queue.deliverable() == ["a"]


async def test_a_child_is_not_retried_while_its_node_would_wait_for_what_was_undone(world: DagWorld) -> None:
    dag, child = await failed(world, {"key": "undo", "topic": "work", "compensates": "a"})
    world.queue.ack("undo")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"
    answer = await world.verb(child, "retry", expect=409)
    assert answer["code"] == "parent_waits"
    assert dag in answer["detail"] and "'mid'" in answer["detail"]
    await world.settle()
    assert not world.queue.deliverable() and (await world.dag(dag))["state"] == "failed"
    await world.verb(dag, "retry")
    await world.settle()
    assert (await world.verb(child, "retry", expect=409))["code"] == "parent_waits"
    await finish(world, dag, "a", "x", "y", "z")
    assert await child_of(world, dag, "mid") == child


@pytest.mark.parametrize("keeps", ["pause", "hold above"])
async def test_a_child_is_not_retried_while_its_node_is_kept_back(world: DagWorld, keeps: str) -> None:
    dag = await start(world, {"key": "top", "dag": {"nodes": [sub("mid", {"x": []}), item("w")]}}, item("v"))
    middle = await child_of(world, dag, "top")
    low = await child_of(world, middle, "mid")
    world.queue.die("x")
    if keeps != "pause":
        world.queue.die("w")
    await world.settle()
    kept = middle if keeps == "pause" else dag
    await world.verb(kept, "pause")
    assert (await world.verb(low, "retry", expect=409))["code"] == "parent_waits"
    await world.verb(kept, "resume")
    await world.verb(low, "retry")
    await world.settle()
    assert (await world.states(middle))["mid"] == (await world.states(dag))["top"] == "released"
    for key in [key for key in ("x", "w", "v") if key in world.queue.deliverable()]:
        world.queue.ack(key)
    await world.settle()
    assert (await world.states(middle))["mid"] == "succeeded"


async def test_a_child_is_not_retried_while_its_node_is_being_cancelled(world: DagWorld) -> None:
    dag = await start(world, sub("mid", {"x": []}), item("z"))
    child = await child_of(world, dag, "mid")
    with Held(world):
        world.queue.die("x")
        await world.settle()
        await world.verb(dag, "nodes/cancel", {"nodes": ["mid"]}, expect=202)
        answer = await world.verb(child, "retry", expect=409)
        assert answer["code"] == "dag_cancelling" and "'mid'" in answer["detail"]
    await world.sweep()
    assert world.queue.deliverable() == ["z"]
    assert (await world.states(dag))["mid"] == "failed", "its end came first"
    await world.verb(child, "retry")
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["x", "z"]


async def test_a_child_is_not_retried_while_its_parent_is_cleaning_up(world: DagWorld) -> None:
    dag, child = await failed(world, {"key": "clean", "topic": "work", "run_on": "always"})
    assert world.queue.deliverable() == ["clean"]
    assert (await world.verb(child, "retry", expect=409))["code"] == "dag_cancelling"
    world.queue.ack("clean")
    await world.settle()
    await world.verb(child, "retry")
    await world.settle()
    await finish(world, dag, "x", "y", "z", "clean")
