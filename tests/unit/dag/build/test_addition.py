"""What an add call changes, worked out from what stands."""

from datetime import UTC, datetime
from typing import Any

import pytest

from services.dag.build.addition import Existing, edges_of, late_counts, new_counts, plan
from services.dag.errors import Cycle, DagFinished, NodeExists, NodeReleased, UnknownNode
from services.dag.model import Counts, Dag, NewEdge, NewNode, Node


def dag(state: str = "running") -> Dag:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    fixed: Any = (1, "id", "ns", None, None, state, True, False, False, False, "continue", None, None, None)
    return Dag(*fixed, None, None, now, None, 3, 0, 0, 0, *([0] * 8))


def new(key: str, *upstream: str, content: bytes = b"1") -> NewNode:
    return NewNode(key, "t", "all_succeeded", False, upstream, (), "{}", content)


def existing(**states: str) -> Existing:
    nodes = {
        key: Node(1, i, key, "item", state, 1, "all_succeeded", False, True, 0, 0, 0, 0, 0, 0, False)  # type: ignore[arg-type]
        for i, (key, state) in enumerate(states.items())
    }
    return Existing(nodes, dict.fromkeys(states, b"1"))


def edge(up: str, down: str) -> NewEdge:
    return NewEdge(up, down, 0)


def test_new_nodes_are_numbered_upstream_first() -> None:
    nodes = [new("c", "b"), new("b", "a"), new("a")]
    made = plan(dag(), nodes, edges_of(nodes, []), existing(), set())
    assert [node.key for node in made.nodes] == ["a", "b", "c"]
    assert not made.late and not made.empty


def test_the_same_node_twice_is_one_and_another_under_its_key_is_refused() -> None:
    made = plan(dag(), [new("a"), new("a")], [], existing(), set())
    assert [node.key for node in made.nodes] == ["a"]
    assert plan(dag("failed"), [new("a")], [], existing(a="failed"), set()).empty
    for nodes, known in (
        ([new("a"), new("a", content=b"2")], existing()),
        ([new("a", content=b"2")], existing(a="blocked")),
    ):
        with pytest.raises(NodeExists):
            plan(dag(), nodes, [], known, set())


def test_edges_of_a_call_are_one_each() -> None:
    nodes = [new("b", "a")]
    assert len(edges_of(nodes, [edge("a", "b"), edge("a", "b")])) == 1


def test_unknown_keys_come_before_all_other_refusals() -> None:
    with pytest.raises(UnknownNode) as refused:
        plan(dag("failed"), [], [edge("x", "y")], existing(), set())
    assert [fault.pointer for fault in refused.value.errors] == [
        "/dependencies/0/upstream",
        "/dependencies/0/downstream",
    ]


def test_late_edges() -> None:
    known = existing(ok="succeeded", run="released", wait="blocked", over="failed")
    assert plan(dag(), [], [edge("ok", "run")], known, set()).empty
    assert plan(dag(), [], [edge("run", "wait")], known, set()).late == [edge("run", "wait")]
    for up, down in (("run", "over"), ("over", "run"), ("wait", "run")):
        with pytest.raises(NodeReleased):
            plan(dag(), [], [edge(up, down)], known, set())
    with pytest.raises(DagFinished):
        plan(dag("succeeded"), [], [edge("run", "over")], known, set())
    assert plan(dag("succeeded"), [], [edge("run", "over")], known, {("run", "over")}).empty


def test_a_cycle_among_new_nodes_is_named() -> None:
    nodes = [new("a", "c"), new("b", "a"), new("c", "b")]
    with pytest.raises(Cycle) as refused:
        plan(dag(), nodes, edges_of(nodes, []), existing(), set())
    assert set(refused.value.detail.partition(": ")[2].split(" -> ")) == {"a", "b", "c"}


def test_counts_follow_the_upstreams_states() -> None:
    known = existing(ok="succeeded", bad="failed", run="released", wait="blocked")
    nodes = [new("n", "ok", "bad", "run", "m"), new("m")]
    made = plan(dag(), nodes, [*edges_of(nodes, []), edge("m", "wait"), edge("bad", "wait")], known, set())
    assert new_counts(made, known)["n"] == Counts(left=2, ok=1, failed=1)
    assert late_counts(made, known) == {known.nodes["wait"].no: Counts(left=1, failed=1)}
