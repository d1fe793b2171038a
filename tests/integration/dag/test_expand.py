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
    await world.settle()
    assert set(world.queue.deliverable()) == {"m", "c", "any"}
    assert (await world.node(dag, "any"))["state"] == "released"


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


async def test_children_bind_a_waiter_that_has_ended_for_when_it_is_retried(world: DagWorld) -> None:
    """One ran on the node's failure, one succeeded beside it, one had failed by an external."""
    dag = await world.create(
        [
            {"key": "m"},
            {"key": "done", "upstream": ["m"], "trigger": "all_done"},
            {"key": "failed", "upstream": ["m"], "trigger": "all_done", "external": ["go"]},
            {"key": "runs", "upstream": ["m"], "trigger": "all_done"},
        ],
        open=True,
    )
    await world.settle()
    world.queue.die("m")
    await world.settle()
    await world.verb(dag, "resolve", {"external": [{"node": "failed", "name": "go", "failed": True}]})
    world.queue.ack("done")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["m"]})
    await world.settle()
    await expand(world, dag, "m", {"c1": []})
    await world.settle()
    assert "runs" in world.queue.deliverable(), "what has begun goes on"
    await world.verb(dag, "retry", {"from": ["done", "failed"]})
    await world.verb(dag, "resolve", {"external": [{"node": "failed", "name": "go"}]})
    await world.settle()
    world.queue.ack("m")
    await world.settle()
    assert set(world.queue.deliverable()) == {"c1", "runs"}
    world.queue.ack("c1")
    await world.settle()
    assert set(world.queue.deliverable()) == {"done", "failed", "runs"}
    assert (await world.node(dag, "runs"))["upstream"] == ["m", "c1"], "its next generation waits too"


async def test_an_adopted_child_brings_its_own_children(world: DagWorld) -> None:
    dag = await world.create({"m": [], "x": [], "w": ["m"]})
    await world.settle()
    await expand(world, dag, "x", {"y": []})
    await world.settle()
    await expand(world, dag, "y", {"z": []})
    await expand(world, dag, "m", {"x": []})
    await world.settle()
    for key in ("m", "x", "y"):
        world.queue.ack(key)
        await world.settle()
        assert "w" not in world.queue.deliverable()
    world.queue.ack("z")
    await world.settle()
    assert world.queue.deliverable() == ["w"]


async def test_a_child_waits_for_the_children_of_another_node_that_it_names(world: DagWorld) -> None:
    dag = await world.create({"m": [], "p": []})
    await world.settle()
    await expand(world, dag, "p", {"pc": []})
    await world.settle()
    world.queue.ack("p")
    await world.settle()
    await expand(world, dag, "m", {"d": ["p"]})
    await world.settle()
    assert set(world.queue.deliverable()) == {"m", "pc"}
    assert (await world.node(dag, "d"))["upstream"] == ["p", "pc"]


async def test_what_is_made_to_wait_by_the_expansion_itself_waits_for_its_children(world: DagWorld) -> None:
    dag = await world.create([{"key": "p"}, {"key": "w", "external": ["go"]}, {"key": "v", "external": ["go"]}])
    await world.settle()
    await expand(world, dag, "p", {"m": []})
    await world.settle()
    links = [{"upstream": "m", "downstream": "w"}, {"upstream": "p", "downstream": "v"}]
    await expand(world, dag, "m", {"c": []}, dependencies=links)
    assert (await world.node(dag, "w"))["upstream"] == ["m", "c"]
    assert (await world.node(dag, "v"))["upstream"] == ["p", "m", "c"]


async def test_an_edge_into_what_has_begun_counts_as_met_only_when_the_children_have_succeeded_too(
    world: DagWorld,
) -> None:
    dag = await world.create({"m": [], "w": []})
    await world.settle()
    await expand(world, dag, "m", {"c": []})
    await world.settle()
    world.queue.ack("m")
    await world.settle()
    assert (await world.link(dag, ("m", "w"), expect=409))["code"] == "node_released"
    world.queue.ack("c")
    await world.settle()
    await world.link(dag, ("m", "w"))


async def test_a_child_cannot_wait_for_what_waits_for_its_node_also_when_that_has_ended(world: DagWorld) -> None:
    dag = await world.create([{"key": "m"}, {"key": "w", "upstream": ["m"], "trigger": "all_done"}], open=True)
    await world.settle()
    world.queue.die("m")
    await world.settle()
    world.queue.ack("w")
    await world.settle()
    await world.verb(dag, "retry", {"nodes": ["m"]})
    await world.settle()
    assert (await expand(world, dag, "m", {"c": ["w"]}, expect=422))["code"] == "cycle"
    await expand(world, dag, "m", {"m": []})
    assert (await world.dag(dag))["nodes"]["total"] == 2, "a node is no child of its own"


class Promises:
    """What was promised of a DAG whose nodes expand themselves, and whether it is kept."""

    def __init__(self, world: DagWorld, dag: str) -> None:
        self.world = world
        self.dag = dag
        self.children: dict[str, set[str]] = {}
        self.waits: dict[str, set[str]] = {}
        self.triggers: dict[str, str] = {}
        self.seen: set[tuple[str, int]] = set()

    def below(self, key: str) -> set[str]:
        """The children of a node, and theirs."""
        found: set[str] = set()
        left = [key]
        while left:
            news = self.children.get(left.pop(), set()) - found
            found |= news
            left += news
        return found - {key}

    def bind(self) -> None:
        """What waits for a node waits for its children from now on."""
        for key, ups in self.waits.items():
            ups.update(*[self.below(up) - {key} for up in ups if key not in self.below(up)])

    async def settle(self) -> dict[str, str]:
        """All that follows from what was done; whatever is delivered then was let go by what it waits for."""
        await self.world.settle()
        states = await self.world.states(self.dag)
        for item in self.world.queue.ready():
            if (item.node, item.generation) in self.seen:
                continue
            self.seen.add((item.node, item.generation))
            ends = {up: states[up] for up in self.waits[item.node]}
            kept = {
                "all_done": not {"blocked", "released"} & set(ends.values()),
                "all_succeeded": set(ends.values()) <= {"succeeded"},
                "any_succeeded": "succeeded" in ends.values(),
            }
            assert kept[self.triggers[item.node]], f"{item.node} {self.triggers[item.node]} began beside {ends}"
        return states


STEPS = 40


@pytest.mark.parametrize("seed", range(12))
async def test_in_any_order_and_generation_nothing_begins_before_the_children_of_what_it_waits_for(
    world: DagWorld, seed: int
) -> None:
    """Random expansions, adoptions, waiters, ends and retries; every delivery is judged by what was promised."""
    chance = random.Random(seed)
    dag = await world.create({"n0": []}, open=True)
    told = Promises(world, dag)
    told.waits["n0"], told.triggers["n0"] = set(), "all_succeeded"
    bodies: dict[str, dict[str, Any]] = {"n0": {"key": "n0"}}
    states = await told.settle()

    async def adopt(mapper: str, key: str, body: dict[str, Any]) -> None:
        answer = await world.call("POST", f"/{dag}/expand", {"node": mapper, "nodes": specs([body])})
        if "nodes" not in answer:
            assert answer["code"] == "cycle"
            return
        brought = {key} | told.below(key)
        assert mapper not in brought, "a node is a child of its own child"
        assert not any(mapper in told.waits.get(each, ()) for each in brought - told.below(mapper)), (
            "what waits for a node has become its child, and waits for no other"
        )
        told.waits.setdefault(key, set(body.get("upstream", ())))
        told.triggers.setdefault(key, body.get("trigger", "all_succeeded"))
        told.children.setdefault(mapper, set()).add(key)
        bodies[key] = body
        told.bind()

    async def step(n: int) -> None:
        known = sorted(bodies)
        running = [key for key in known if states[key] == "released"]
        over = [key for key in known if states[key] not in ("released", "blocked")]
        body = {
            "key": f"n{n}",
            "trigger": chance.choice(["all_done", "all_done", "all_succeeded", "any_succeeded"]),
        }
        body["upstream"] = sorted(set(chance.choices(known, k=chance.choice([1, 1, 2]))))
        match chance.choice(["expand", "adopt", "wait", "wait", "ack", "ack", "die", "retry", "retry", "link"]):
            case "expand" if running and n < STEPS * 2 // 3:
                await adopt(chance.choice(running), f"n{n}", chance.choice([{"key": f"n{n}"}, body]))
            case "adopt" if running:
                mapper, key = chance.choice(running), chance.choice(known)
                if mapper != key:
                    await adopt(mapper, key, bodies[key])
            case "wait" if n < STEPS * 2 // 3:
                await world.add(dag, [body])
                told.waits[f"n{n}"], told.triggers[f"n{n}"] = set(body["upstream"]), body["trigger"]
                bodies[f"n{n}"] = body
                told.bind()
            case "link":
                up, down = chance.choice(known), chance.choice(known)
                begun = states[down] != "blocked"
                answer = await world.call(
                    "POST", f"/{dag}/dependencies", {"dependencies": [{"upstream": up, "downstream": down}]}
                )
                if "dependencies" not in answer:
                    assert answer["code"] in ("cycle", "node_released")
                elif begun and up not in told.waits[down]:
                    met = told.below(up) | {up} if down not in told.below(up) else {up}
                    assert {states[key] for key in met} == {"succeeded"}
                else:
                    told.waits[down].add(up)
                    told.bind()
            case "retry" if over:
                how = chance.choice([{"from": [chance.choice(over)]}, {"nodes": [chance.choice(over)]}, {}])
                await world.call("POST", f"/{dag}/retry", how)
            case "ack" | "die" as end if running:
                key = chance.choice(running)
                world.queue.ack(key) if end == "ack" else world.queue.die(key)

    for n in range(1, STEPS):
        await step(n)
        states = await told.settle()
    for _ in range(2 * STEPS):
        if not (ready := world.queue.deliverable()):
            break
        for key in ready:
            world.queue.ack(key)
        await told.settle()
    await world.verb(dag, "close")
    await world.settle()
    assert (await world.dag(dag))["state"] in ("succeeded", "failed")
