"""Who is made a child, and cannot be: what has the node below it, and what waits for the node."""

from typing import Any

import pytest

from tests.support.dag_world import DagWorld, specs


async def expand(world: DagWorld, dag: str, node: str, children: Any, expect: int = 201) -> Any:
    return await world.verb(dag, "expand", {"node": node, "nodes": specs(children)}, expect=expect)


async def refused_as_a_cycle(world: DagWorld, dag: str, node: str, children: Any) -> str:
    """What is said of an expansion that closes a cycle; it has written nothing."""
    tables = ("node", "edge", "expansion")
    before = [await world.rows(f"SELECT * FROM {table}") for table in tables]
    answer = await expand(world, dag, node, children, expect=422)
    assert (answer["code"], answer["outcome"]) == ("cycle", "none")
    assert [await world.rows(f"SELECT * FROM {table}") for table in tables] == before
    return str(answer["detail"])


@pytest.mark.parametrize("children", [{"p": []}, {"x": [], "p": []}])
async def test_a_child_does_not_adopt_its_parent(world: DagWorld, children: dict[str, list[str]]) -> None:
    """It did, and what waited for the child was below the child then: it ran beside the child's children."""
    dag = await world.create({"p": []})
    await world.settle()
    await expand(world, dag, "p", {"c": [], "v": ["c"]})
    await world.settle()
    assert "c -> p -> c" in await refused_as_a_cycle(world, dag, "c", children)
    await expand(world, dag, "c", {"x": []})
    await world.settle()
    world.queue.ack("c")
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["p", "x"]
    world.queue.ack("x")
    await world.settle()
    assert sorted(world.queue.deliverable()) == ["p", "v"]


async def test_nor_does_it_adopt_its_parents_parent_or_one_that_has_that_below_it(world: DagWorld) -> None:
    """Nobody waits for anybody here: that each is below the other is enough."""
    dag = await world.create({"g": [], "top": []})
    await world.settle()
    await expand(world, dag, "g", {"p": []})
    await world.settle()
    await expand(world, dag, "p", {"c": []})
    await expand(world, dag, "top", {"g": []})
    await world.settle()
    for above in ("p", "g", "top"):
        assert f"c -> {above} -> c" in await refused_as_a_cycle(world, dag, "c", {above: []})
    await expand(world, dag, "top", {"c": []})
    await expand(world, dag, "c", {"c": []})


@pytest.mark.parametrize("waiter", ["v", "k"])
async def test_who_has_a_waiter_of_the_node_below_it_or_is_one_does_not_become_its_child(
    world: DagWorld, waiter: str
) -> None:
    """It did, and the waiter was of the family then: it ran beside the node's other children."""
    nodes: list[dict[str, Any]] = [{"key": "m"}, {"key": "k"}]
    if waiter == "k":
        nodes[1]["upstream"] = ["m"]
    dag = await world.create(nodes)
    await world.settle()
    if waiter == "v":
        await expand(world, dag, "k", {"v": ["m"]})
        await world.settle()
    brought = [node for node in nodes if node["key"] == "k"]
    said = await refused_as_a_cycle(world, dag, "m", [*brought, {"key": "c"}])
    assert f"{waiter} waits for m" in said and f"m -> {waiter} -> {waiter}" in said
    await refused_as_a_cycle(world, dag, "m", brought)
    await expand(world, dag, "m", {"c": []})
    await refused_as_a_cycle(world, dag, "m", brought)
    await world.settle()
    world.queue.ack("m")
    await world.settle()
    assert waiter not in world.queue.deliverable()
    world.queue.ack("c")
    await world.settle()
    assert waiter in world.queue.deliverable()


async def test_what_waits_for_the_parent_is_no_child_of_its_child(world: DagWorld) -> None:
    """It waits for the child as it waits for the parent."""
    dag = await world.create({"g": [], "w": ["g"]})
    await world.settle()
    await expand(world, dag, "g", {"m": []})
    await world.settle()
    await refused_as_a_cycle(world, dag, "m", {"w": ["g"]})
    await expand(world, dag, "m", {"c": []})
    assert (await world.node(dag, "w"))["upstream"] == ["g", "m", "c"]


async def test_what_is_below_the_node_when_it_comes_to_wait_for_it_waits_for_it_alone(world: DagWorld) -> None:
    """Two children have each one that is to come after the node; as waiters they would wait for each other."""
    dag = await world.create({"m": [], "k": []})
    await world.settle()
    await expand(world, dag, "m", {"c": [], "k": []})
    await world.settle()
    await expand(world, dag, "c", {"cc": ["m"]})
    await expand(world, dag, "k", {"kk": ["m"]})
    await expand(world, dag, "m", {"d": ["c"]})
    await expand(world, dag, "m", {"k": []})
    await expand(world, dag, "k", {"kk": ["m"]})
    for key in ("cc", "kk"):
        assert (await world.node(dag, key))["upstream"] == ["m"]
    assert (await world.node(dag, "d"))["upstream"] == ["c", "cc"]
