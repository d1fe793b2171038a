"""A running node expands itself: nothing that waits for it begins before its children, whoever came first."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.support.dag_world import DagWorld, specs
from tests.support.locks import locked


async def expand(world: DagWorld, dag: str, node: str, children: Any, expect: int = 201, **more: Any) -> Any:
    return await world.verb(dag, "expand", {"node": node, "nodes": specs(children), **more}, expect=expect)


async def test_what_waited_before_and_what_waits_later_comes_after_the_children(world: DagWorld) -> None:
    dag = await world.create({"m": [], "early": ["m"]})
    await world.settle()
    await expand(world, dag, "m", {"c1": [], "c2": ["c1"]})
    await world.add(dag, {"late": ["m"], "linked": []})
    await world.add(dag, [{"key": "gated", "external": ["go"]}])
    await world.link(dag, ("m", "gated"))
    await world.verb(dag, "resolve", {"external": [{"node": "gated", "name": "go"}]})
    await world.settle()
    world.queue.ack("m")
    await world.settle()
    await world.add(dag, {"after_its_end": ["m"]})
    waiting = {"early", "late", "gated", "after_its_end"}
    states = await world.states(dag)
    assert {key for key, state in states.items() if state == "blocked"} == waiting | {"c2"}
    world.queue.ack("c1")
    await world.settle()
    assert not waiting & set(world.queue.deliverable())
    world.queue.ack("c2")
    await world.settle()
    assert waiting <= set(world.queue.deliverable())


async def test_a_child_expands_itself_and_the_first_waiter_waits_for_all(world: DagWorld) -> None:
    dag = await world.create({"m": [], "w": ["m"]})
    await world.settle()
    await expand(world, dag, "m", {"c": []})
    await world.settle()
    world.queue.ack("m")
    await world.settle()
    await expand(world, dag, "c", {"cc": []})
    await world.add(dag, {"late": ["m"]})
    await world.settle()
    await expand(world, dag, "cc", {"ccc": []})
    for key in ("c", "cc"):
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    assert {key: state for key, state in (await world.states(dag)).items() if state == "blocked"} == {
        "w": "blocked",
        "late": "blocked",
    }
    world.queue.ack("ccc")
    await world.settle()
    assert set(world.queue.deliverable()) == {"w", "late"}


async def test_a_waiter_is_given_the_childrens_outputs_in_their_order(world: DagWorld) -> None:
    dag = await world.create([{"key": "m"}, {"key": "w", "upstream": ["m"], "pass_outputs": True}])
    await world.settle()
    keys = [f"c{i}" for i in range(12)]
    await expand(world, dag, "m", {key: [] for key in keys[:7]})
    await expand(world, dag, "m", {key: [] for key in keys[7:]})
    world.queue.ack("m", output="split")
    await world.settle()
    for key in reversed(keys):
        world.queue.ack(key, output=key.upper())
    await world.settle()
    found = json.loads(world.queue.item_of("w").inputs)
    assert list(found.items()) == [("m", "split"), *((key, key.upper()) for key in keys)]


async def test_the_same_children_again_are_a_no_op_also_after_all_has_ended(world: DagWorld) -> None:
    dag = await world.create({"m": [], "w": ["m"]})
    await world.settle()
    first = await expand(world, dag, "m", {"c": []}, generation=1)
    assert [node["key"] for node in first["nodes"]] == ["c"]
    edges = await world.rows("SELECT * FROM edge")
    assert (await expand(world, dag, "m", {"c": []}))["nodes"][0]["item_id"] == first["nodes"][0]["item_id"]
    assert await world.rows("SELECT * FROM edge") == edges
    await world.settle()
    for key in ("m", "c", "w"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    again = await expand(world, dag, "m", {"c": []}, generation=1)
    assert again["nodes"][0]["state"] == "succeeded"
    assert (await expand(world, dag, "m", {"d": []}, expect=409))["code"] == "dag_finished"
    assert (await expand(world, dag, "m", [{"key": "c", "priority": 9}], expect=409))["code"] == "node_exists"


async def test_only_a_node_that_runs_expands_itself(world: DagWorld) -> None:
    dag = await world.create({"m": [], "b": ["m"], "w": ["b"]})
    await world.settle()
    assert (await expand(world, dag, "b", {"c": []}, expect=409))["code"] == "node_not_running"
    assert (await expand(world, dag, "no", {"c": []}, expect=422))["errors"][0]["pointer"] == "/node"
    assert (await expand(world, dag, "m", {"c": []}, expect=409, generation=2))["code"] == "node_not_running"
    world.queue.ack("m")
    await world.settle()
    assert (await expand(world, dag, "m", {"c": []}, expect=409))["code"] == "node_not_running"
    assert len(await world.states(dag)) == 3


async def test_an_ack_on_its_way_and_an_expansion_meet_and_one_of_them_is_first(world: DagWorld) -> None:
    for expanding_first in (True, False):
        dag = await world.create({"m": [], "w": ["m"]})
        await world.settle()
        world.queue.ack("m")
        async with locked(world, dag) as until_waiting:
            works = [
                lambda dag=dag: world.call("POST", f"/{dag}/expand", {"node": "m", "nodes": specs({"c": []})}),
                world.loops.results[0].drain,
            ]
            if not expanding_first:
                works.reverse()
            tasks = []
            for n, work in enumerate(works):
                tasks.append(asyncio.create_task(work()))
                await until_waiting(n + 1)
        answers = await asyncio.gather(*tasks)
        answer = next(found for found in answers if found is not None)
        await world.settle()
        states = await world.states(dag)
        if expanding_first:
            assert states == {"m": "succeeded", "w": "blocked", "c": "released"}
        else:
            assert answer["code"] == "node_not_running"
            assert states == {"m": "succeeded", "w": "released"}
        await world.verb(dag, "cancel", expect=202)
        await world.settle()


async def test_children_added_after_one_has_failed_are_still_waited_for_when_that_is_retried(
    world: DagWorld,
) -> None:
    """The waiter is skipped by then; its edges must be there when the retry opens it again."""
    dag = await world.create({"m": [], "w": ["m"]})
    await world.settle()
    await expand(world, dag, "m", {"c1": []})
    await world.settle()
    world.queue.die("c1")
    await world.settle()
    assert (await world.node(dag, "w"))["state"] == "skipped"
    await expand(world, dag, "m", {"c2": []})
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["c1"]})
    await world.settle()
    for key in ("c1", "m"):
        world.queue.ack(key)
        await world.settle()
    assert (await world.node(dag, "w"))["state"] == "blocked"
    world.queue.ack("c2")
    await world.settle()
    assert world.queue.deliverable() == ["w"]


async def test_what_has_begun_is_not_held_back_by_children(world: DagWorld) -> None:
    dag = await world.create(
        [{"key": "m"}, {"key": "x"}, {"key": "any", "upstream": ["m", "x"], "trigger": "any_succeeded"}]
    )
    await world.settle()
    world.queue.ack("x")
    await world.settle()
    await expand(world, dag, "m", {"c": []})
    assert (await world.node(dag, "any"))["upstream"] == ["m", "x"]


async def test_a_child_may_wait_for_the_node_itself_and_is_no_waiter_then(world: DagWorld) -> None:
    dag = await world.create({"m": [], "w": ["m"]})
    await world.settle()
    await expand(world, dag, "m", {"c1": ["m"]})
    await expand(world, dag, "m", {"c2": ["m"]})
    assert (await world.node(dag, "c1"))["upstream"] == ["m"]
    assert (await world.node(dag, "c2"))["upstream"] == ["m"]
    assert (await world.node(dag, "w"))["upstream"] == ["m", "c1", "c2"]


async def test_a_cycle_through_children_is_refused(world: DagWorld) -> None:
    dag = await world.create({"m": [], "w": ["m"], "z": ["w"]})
    await world.settle()
    assert (await expand(world, dag, "m", {"c": ["z"]}, expect=422))["code"] == "cycle"
    assert set(await world.states(dag)) == {"m", "w", "z"}
    await expand(world, dag, "m", {"c": []})
    await world.add(dag, {"k": []})
    assert (await world.dag(dag))["nodes"]["total"] == 5


@pytest.mark.parametrize("many", [3, 4])
async def test_edges_to_what_waits_are_taken_to_the_limit_and_not_past_it(world: DagWorld, many: int) -> None:
    made = DagWorld(world.database, world.queue, expand_edges_max=6)
    try:
        dag = await made.create({"m": [], "w1": ["m"], "w2": ["m"]})
        await made.settle()
        children = {f"c{i}": [] for i in range(many)}
        if many == 3:
            await expand(made, dag, "m", children)
        else:
            assert (await expand(made, dag, "m", children, expect=422))["code"] == "limit_exceeded"
            assert len(await made.states(dag)) == 3
    finally:
        await made.close()


@pytest.mark.parametrize("seed", range(6))
async def test_in_any_order_nothing_begins_before_the_children_of_what_it_waits_for(
    world: DagWorld, seed: int
) -> None:
    """Random expansions, late waiters and completions; every delivery is judged by what was promised then."""
    chance = random.Random(seed)
    dag = await world.create({"n0": [], "w0": ["n0"]}, open=True)
    children: dict[str, list[str]] = {}
    waits = {"w0": ["n0"]}
    ended: set[str] = set()
    await world.settle()

    def below(key: str) -> set[str]:
        return {key}.union(*(below(child) for child in children.get(key, ())))

    for n in range(1, 40):
        running = [key for key in world.queue.deliverable() if key.startswith("n")]
        waiters = [key for key in world.queue.deliverable() if key.startswith("w")]
        known = sorted({"n0"}.union(*(below(key) for key in children)))
        action = chance.choice(["expand", "wait", "ack", "ack"])
        if action == "expand" and running and n < 25:
            mapper = chance.choice(running)
            await expand(world, dag, mapper, {f"n{n}": []})
            children.setdefault(mapper, []).append(f"n{n}")
        elif action == "wait":
            waits[f"w{n}"] = [chance.choice(known)]
            await world.add(dag, {f"w{n}": waits[f"w{n}"]})
        elif running or waiters:
            key = chance.choice(running + waiters)
            if key in waits:
                assert below(waits[key][0]) <= ended, f"{key} began before children of {waits[key][0]}"
            world.queue.ack(key)
            ended.add(key)
        await world.settle()
    while ready := world.queue.deliverable():
        for key in ready:
            if key in waits:
                assert below(waits[key][0]) <= ended
            world.queue.ack(key)
            ended.add(key)
        await world.settle()
    await world.verb(dag, "close")
    assert (await world.dag(dag))["state"] == "succeeded"
