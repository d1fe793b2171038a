"""What goes first: started DAGs before new ones, and the longest way first, where a DAG asks for it."""

from typing import Any

import pytest

from services.dag.run.priority import ranks_of
from tests.support.dag_world import DagWorld, specs
from tests.support.queue_fake import FakeQueue


def priority_of(world: DagWorld, node: str) -> Any:
    return world.queue.item_of(node).body["priority"]


@pytest.mark.parametrize(("lift", "order"), [(0, ["new", "next"]), (10, ["next", "new"])])
async def test_a_started_dag_goes_before_a_new_one_that_came_first(
    world: DagWorld, lift: int, order: list[str]
) -> None:
    await world.create({"begun": [], "next": ["begun"]}, **({"priority": {"inherit": lift}} if lift else {}))
    await world.settle()
    assert priority_of(world, "begun") == 0, "a DAG that has not started goes before nobody"
    await world.create({"new": []}, **({"priority": {"inherit": lift}} if lift else {}))
    await world.settle()
    world.queue.ack("begun")
    await world.settle()
    if not lift:
        # The fake keeps the time of the revive; the same here as in the queue.
        assert [verb for verb, _, _ in world.queue.calls if verb == "revive"] == ["revive"]
    assert world.queue.deliverable() == order


async def test_the_longest_way_goes_first_and_grows_with_the_dag(world: DagWorld) -> None:
    made = DagWorld(world.database, world.queue, priority_refresh_s=0.0)
    try:
        nodes = {"short": [], "long": [], "l1": ["long"], "l2": ["l1"], "gate": []}
        dag = await made.create(nodes, priority={"critical_path": 5})
        await made.settle()
        assert world.queue.deliverable() == ["long", "short", "gate"]
        assert (priority_of(made, "long"), priority_of(made, "short")) == (-10, 0)
        await made.add(
            dag, {"p": ["gate"], "q": ["gate"], **{f"q{i}": [f"q{i - 1}" if i else "q"] for i in range(4)}}
        )
        world.queue.ack("gate")
        await made.settle()
        assert (priority_of(made, "q"), priority_of(made, "p")) == (-20, 0)
        assert world.queue.deliverable()[0] == "q"
    finally:
        await made.close()


async def test_both_add_up_on_the_nodes_own_priority_and_keep_within_bounds(world: DagWorld) -> None:
    nodes = [
        {"key": "a"},
        {"key": "b", "upstream": ["a"], "priority": 7},
        {"key": "low", "upstream": ["a"], "priority": -(2**31)},
        {"key": "c", "upstream": ["b", "low"]},
    ]
    dag = await world.create(nodes, priority={"inherit": 100, "critical_path": 1})
    await world.settle()
    assert priority_of(world, "a") == -2
    world.queue.ack("a")
    await world.settle()
    assert (priority_of(world, "b"), priority_of(world, "low")) == (7 - 100 - 1, -(2**31))
    assert (await world.dag(dag))["priority"] == {"inherit": 100, "critical_path": 1}


WHOLE = {"a": [], "b": ["a"], "c": ["b"]}


@pytest.mark.parametrize(
    ("priority", "more", "ahead"),
    [
        ({"inherit": 20, "critical_path": 3}, {}, {"a": -6, "b": -23, "c": -20}),
        ({"inherit": 20}, {}, {"a": 0, "b": -20, "c": -20}),
        ({"inherit": 20}, {"open": True}, {"a": 0, "b": -20, "c": -20}),
        # Of a node without upstreams it is not known whether the DAG has started when it is released.
        ({"inherit": 20}, {"hold": True}, {"b": -20, "c": -20}),
        ({"inherit": 20}, {"external": ["x"]}, {"b": -20, "c": -20}),
        # More nodes may come behind these.
        ({"inherit": 20, "critical_path": 3}, {"open": True}, {"a": -6}),
        ({"inherit": 20, "critical_path": 3}, {"hold": True}, {}),
    ],
)
async def test_what_will_be_sent_with_a_known_priority_is_given_to_the_queue_before(
    world: DagWorld, priority: dict[str, int], more: dict[str, Any], ahead: dict[str, int]
) -> None:
    nodes = specs(WHOLE)
    if "external" in more:
        nodes[0]["external"] = more.pop("external")
    await world.call("POST", "", {"nodes": nodes, "priority": priority, **more}, expect=201)
    await world.settle()
    given = {item.node: item.body["priority"] for item in world.queue.items.values()}
    assert given == ahead


async def test_what_is_added_to_a_dag_with_a_priority_is_given_before_where_it_is_known(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]}, priority={"inherit": 5})
    await world.settle()
    await world.add(dag, {"c": ["b"], "root": []})
    await world.settle()
    assert [priority_of(world, key) for key in ("a", "b", "c", "root")] == [0, -5, -5, 0]
    world.queue.ack("a")
    await world.settle()
    await world.add(dag, {"late": []})
    await world.settle()
    assert priority_of(world, "late") == -5, "the DAG has started"
    assert world.queue.deliverable() == ["b", "late", "root"]
    await world.audit()


async def test_a_dag_that_does_not_ask_costs_no_other_call(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    verbs = [verb for verb, _, _ in world.queue.calls if verb in ("enqueue", "revive")]
    assert verbs == ["enqueue", "revive"]
    assert (await world.dag(dag))["priority"] is None


async def test_an_item_that_is_sent_again_after_a_crash_is_lifted_too(world: DagWorld) -> None:
    world.queue.down = {"enqueue"}
    body = {"nodes": specs({"a": [], "b": ["a"], "c": ["b"]}), "priority": {"inherit": 20, "critical_path": 3}}
    assert (await world.call("POST", "", body, expect=503))["outcome"] == "unknown"
    await world.settle()
    world.queue.down = set()
    again = DagWorld(world.database, world.queue)
    try:
        await again.sweep()
        assert [priority_of(again, key) for key in "abc"] == [-6, -23, -20]
    finally:
        await again.close()


async def test_a_sub_dag_has_its_parents_priority_and_counts_as_started(world: DagWorld) -> None:
    inner = {"nodes": specs({"x": [], "y": ["x"]})}
    own = {"nodes": specs({"z": []}), "priority": {"inherit": 1}}
    nodes = [{"key": "mid", "dag": inner}, {"key": "other", "dag": own}]
    await world.call("POST", "", {"nodes": nodes, "priority": {"inherit": 50, "critical_path": 2}}, expect=201)
    await world.settle()
    assert (priority_of(world, "x"), priority_of(world, "z")) == (-52, -1)


@pytest.mark.parametrize(("edges", "lift"), [(2, -2), (1, 0)])
async def test_a_dag_is_ranked_up_to_its_limit_of_edges_and_not_past_it(
    world: DagWorld, edges: int, lift: int
) -> None:
    made = DagWorld(world.database, FakeQueue(), priority_edges_max=edges)
    try:
        await made.create({"a": [], "b": ["a"], "c": ["b"]}, priority={"critical_path": 1})
        await made.settle()
        assert priority_of(made, "a") == lift
    finally:
        await made.close()


async def test_levels_are_remembered_of_so_many_nodes_and_worked_out_again(world: DagWorld) -> None:
    world.settings.__dict__.update(priority_ranks_max=5)
    for n in range(6):
        await world.create({f"a{n}": [], f"b{n}": [f"a{n}"]}, priority={"critical_path": 5})
        await world.settle()
        assert priority_of(world, f"a{n}") == -5
        assert sum(len(known.ranks) for known in world.loops.relay._ranks._known.values()) <= 5


async def test_levels_count_up_to_their_limit(world: DagWorld) -> None:
    made = DagWorld(world.database, FakeQueue(), priority_levels_max=2)
    try:
        chain = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(5)}
        await made.create(chain, priority={"critical_path": 1})
        await made.settle()
        assert priority_of(made, "n0") == -2
    finally:
        await made.close()


@pytest.mark.parametrize(
    "priority", [{"inherit": -1}, {"inherit": 1_000_001}, {"critical_path": 0.5}, {"x": 1}, 7]
)
async def test_a_wrong_priority_is_refused(world: DagWorld, priority: Any) -> None:
    assert (await world.call("POST", "", {"priority": priority}, expect=422))["code"] == "invalid"


def test_ranks_are_the_longest_chains_behind() -> None:
    edges = [(1, 2), (2, 3), (1, 3), (3, 4), (5, 4)]
    assert ranks_of(edges) == {1: 3, 2: 2, 3: 1, 4: 0, 5: 1}
    assert ranks_of([]) == {}
