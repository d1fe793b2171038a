"""New DAGs of the common shape: what the short way takes is what the long way makes of it."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from headgate import wire
from services.dag.api import intake, simple_intake
from services.dag.build import addition, create_batch
from services.dag.settings import DagSettings
from services.dag.store.create import NodeBatch
from shared import ids
from shared.errors import ServiceError
from shared.fallback import Fallback
from shared.http import json_body

SETTINGS = DagSettings()
DAG = ids.new_id(3)
TEXTS = st.sampled_from(
    ["", "a", "b", "c", "long" * 50, "long" * 50 + "!", "ü", 'q"', "\\", "a b", "\n", "\x7f", "\0"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.sampled_from(
    [0, 1, -1, 1.0, 0.5, 60, 43_200, 43_201, 2**31 - 1, 2**31, -(2**31), 2**70, True, None, "1"]
)
# What a member may be, mostly something right.
NODE = {
    "key": TEXTS,
    "topic": st.sampled_from(["t", "a/b-C.9_", "_t", "/", "", "t t", "x" * 128, "x" * 129, None, 1]),
    "payload": JSON | st.sampled_from(["x" * 65_534, "x" * 65_535, "ü" * 32_767, "ü" * 32_768]),
    "upstream": st.lists(TEXTS, max_size=3) | st.sampled_from([None, [], "a", [1]]),
    "trigger": st.sampled_from([*wire.Trigger.__args__, "never", None]),  # type: ignore[attr-defined]
    "pass_outputs": st.sampled_from([True, False, None, 1]),
    "priority": NUMBERS,
    "lease_s": NUMBERS,
    "max_attempts": NUMBERS,
    "metadata": st.sampled_from([None, {}, {"a": 1}]),
    "delay_s": NUMBERS,
    "external": st.sampled_from([None, ["x"]]),
    "run_on": st.sampled_from([None, "always"]),
    "unknown": st.none(),
}
WHOLE = {
    "key": TEXTS | st.none(),
    "name": TEXTS | st.none(),
    "open": st.booleans() | st.none(),
    "hold": st.booleans() | st.just(0),
    "on_failure": st.sampled_from(["continue", "cancel", "stop"]),
    "deadline_s": NUMBERS,
    "metadata": st.sampled_from([None, {"a": 1}]),
    "priority": st.sampled_from([None, {}, {"inherit": 1}]),
    "dependencies": st.sampled_from([None, [], [{"upstream": "a", "downstream": "b"}]]),
}


def some(members: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few of these members."""
    names = st.lists(st.sampled_from(sorted(members)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: members[name] for name in chosen}))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Bodies of create calls, most of them right but for a few members."""
    count = draw(st.integers(0, 5))
    nodes = []
    for n in range(count):
        node: dict[str, Any] = {"key": f"n{n}", "topic": "t"}
        if ups := draw(st.lists(st.integers(0, max(n - 1, 0) if draw(st.booleans()) else count), max_size=3)):
            node["upstream"] = [f"n{up}" for up in ups]
        nodes.append(node | (draw(some(NODE, 2)) if draw(st.integers(0, 2)) == 0 else {}))
    body = {"nodes": nodes} if nodes or draw(st.booleans()) else {}
    return body | draw(some(WHOLE, 2))


def long_way(value: Any, settings: DagSettings = SETTINGS) -> NodeBatch | None:
    """The DAG that the wire models, `intake` and `create_batch.plan` make of a body's value; None when they refuse
    it, or leave it to what looks at the shard."""
    try:
        spec = wire.DagSpec.model_validate(value)
        new = intake.new_dag(spec, settings)
        nodes, edges = intake.new_nodes(spec.nodes or (), settings), intake.new_edges(spec.dependencies or ())
    except (ValidationError, ServiceError):
        return None
    planned = create_batch.plan(DAG, "ns", new, nodes, addition.edges_of(nodes, edges), 5, settings)
    return None if isinstance(planned, Fallback) else planned


def short_way(value: Any, settings: DagSettings = SETTINGS) -> NodeBatch | None:
    made = simple_intake.read(value, settings)
    return None if isinstance(made, Fallback) else create_batch.lay_out(DAG, "ns", *made, 5)


def check(body: Any, settings: DagSettings = SETTINGS) -> NodeBatch | None:
    """What the short way makes of a body, which is what the long way makes of it."""
    value = json_body.check(json.dumps(body).encode(), depth_max=settings.json_depth_max)
    untouched = copy.deepcopy(value)
    short = short_way(value, settings)
    assert value == untouched
    if short is not None:
        long = long_way(value, settings)
        assert long is not None, "the long way refuses it"
        assert len(set(short.item_ids)) == len(long.item_ids)
        assert short._replace(item_ids=[]) == long._replace(item_ids=[])
        assert all(map(ids.canonical, short.item_ids)) and {ids.shard_of(i) for i in short.item_ids} == {5}
        assert {i[ids.DAG_TAG] for i in short.item_ids} == {DAG[ids.DAG_TAG]}
    return short


@given(bodies())
@example({"nodes": [{"key": "a", "topic": "t", "priority": 1.0}]})
@example({"nodes": [{"key": "a", "topic": "t", "payload": {"b": {"d": 1, "c": [{"f": 1, "e": 2}]}, "a": 5e16}}]})
@example({"nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a", "a"]}]})
@example({"nodes": [{"key": "a", "topic": "t"}, {"key": "a", "topic": "t"}]})
def test_what_the_short_way_takes_is_what_the_long_way_makes(body: dict[str, Any]) -> None:
    check(body)


NUMBERS_TRIED = [0, 0.5, 1, 1.0, -1, 60, 43_200, 43_200.5, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**70, True]
TRIED: dict[str, list[Any]] = {
    "topic": ["a/b-C.9_", "_t", "/", "-_", "", "t t", "t\n", "x" * 128, "x" * 129, 1],
    "payload": ["x" * 65_534, "x" * 65_535, "ü" * 32_767, "ü" * 32_768, "\0", 2**70, 5e16, {"b": 1, "a": '"'}],
    "trigger": ["all_succeeded", "all_done", "none_failed", "any_succeeded", "any_failed", "never"],
    "pass_outputs": [True, False, 0],
    "upstream": [["a"], ["a", "a"], ["b"], ["nobody"], [], "a", [1]],
    "priority": NUMBERS_TRIED,
    "lease_s": NUMBERS_TRIED,
    "max_attempts": NUMBERS_TRIED,
}


@pytest.mark.parametrize("member", sorted(TRIED))
def test_each_member_at_its_bounds_and_beyond(member: str) -> None:
    taken = []
    for value in [*TRIED[member], None, "1", [], {}]:
        for upstream in ({}, {"upstream": ["a"]}):
            body = {"nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", **upstream, member: value}]}
            taken.append(check(body) is not None)
    assert any(taken)


@pytest.mark.parametrize(
    "whole", [{}, {"hold": True}, {"open": True, "name": "a b"}, {"key": "k", "on_failure": "cancel"}]
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"payload": {"z": 1, "a": ["ü", None]}, "pass_outputs": True},
        {"trigger": "all_done", "priority": -5, "lease_s": 30, "max_attempts": 3},
        {"trigger": "none_failed", "lease_s": 1.5},
    ],
)
def test_the_common_shape_goes_the_short_way(more: dict[str, Any], whole: dict[str, Any]) -> None:
    below = [{"key": f"n{n}", "topic": "t", "upstream": ["first"], **more} for n in range(250)]
    last = {"key": "last", "topic": "a/b", "upstream": [node["key"] for node in below[::-1]]}
    made = check({"nodes": [{"key": "first", "topic": "t", **more}, *below, last], **whole})
    assert made is not None
    assert len(made.changes) == 3, "rows of the log are of a size"
    assert made.released == ([] if whole.get("hold") else [0])


@pytest.mark.parametrize("limit", ["nodes_per_dag_max", "edges_per_dag_max", "degree_max", "payload_bytes_max"])
def test_what_is_over_a_limit_is_left_to_the_long_way(limit: str) -> None:
    # Three nodes, three edges, three upstreams of one, and three bytes.
    nodes = [{"key": key, "topic": "t", "payload": "x"} for key in "abcd"]
    body = {"nodes": [*nodes[:3], nodes[3] | {"upstream": ["a", "b", "c"]}]}
    most = 4 if limit == "nodes_per_dag_max" else 3
    assert check(body, DagSettings(**{limit: most})) is not None
    assert check(body, DagSettings(**{limit: most - 1})) is None


def test_a_thousand_nodes_are_taken_and_one_more_is_not() -> None:
    nodes = [{"key": f"n{n}", "topic": "t"} for n in range(wire.BATCH_MAX + 1)]
    assert not isinstance(simple_intake.read({"nodes": nodes[:-1]}, SETTINGS), Fallback)
    assert simple_intake.read({"nodes": nodes}, SETTINGS) == Fallback("shape")


@pytest.mark.parametrize("name", ["k" * 1_024, "k" * 1_025, "", "a\n", "ü", 'a"', "a\\", "\x7f", "a\x85"])
def test_keys_are_plain_where_they_stand_in_json_as_they_are(name: str) -> None:
    made = check({"nodes": [{"key": name, "topic": "t"}]})
    is_plain = 0 < len(name) <= 1_024 and msgspec.json.encode(name) == f'"{name}"'.encode() and name.isascii()
    assert (made is not None) == (is_plain and name.isprintable())


def check_nodes(body: dict[str, Any], settings: DagSettings = SETTINGS) -> bool:
    """Whether the short way takes nodes to add; then they are what the long way makes of them."""
    value = json_body.check(json.dumps(body).encode(), depth_max=settings.json_depth_max)
    untouched = copy.deepcopy(value)
    added = simple_intake.read_added(value)
    short = added if isinstance(added, Fallback) else simple_intake.nodes_of(added, settings)
    assert value == untouched
    if not isinstance(short, Fallback):
        spec = wire.AddNodes.model_validate(value)
        assert short[0] == intake.new_nodes(spec.nodes, settings)
        assert short[1] == intake.new_edges(spec.dependencies or ())
    return not isinstance(short, Fallback)


@given(bodies())
@example({"nodes": [{"key": "a", "topic": "t", "upstream": ["old", "a"]}]})
@example({"nodes": [{"key": "a", "topic": "t", "upstream": ["b", "b"]}]})
@example({"nodes": [{"key": "a", "topic": "t"}, {"key": "a", "topic": "t"}]})
def test_nodes_to_add_are_what_the_long_way_makes(body: dict[str, Any]) -> None:
    check_nodes({name: body[name] for name in ("nodes", "dependencies") if name in body})
    check_nodes(body)


@pytest.mark.parametrize("member", sorted(TRIED))
def test_each_member_of_a_node_to_add_at_its_bounds_and_beyond(member: str) -> None:
    taken = []
    for value in [*TRIED[member], None, "1", [], {}]:
        for upstream in ({}, {"upstream": ["a"]}):
            taken.append(check_nodes({"nodes": [{"key": "b", "topic": "t", **upstream, member: value}]}))
    assert any(taken)


@pytest.mark.parametrize(
    "edges",
    [
        None,
        [],
        [{"upstream": "a", "downstream": "old"}],
        [{"upstream": "a"}],
        [{"upstream": "", "downstream": "a"}],
    ]
    + [[{"upstream": "a", "downstream": "b"}] * count for count in (wire.BATCH_MAX, wire.BATCH_MAX + 1)],
)
def test_edges_beside_nodes_to_add(edges: Any) -> None:
    taken = check_nodes({"nodes": [{"key": "a", "topic": "t"}], "dependencies": edges})
    assert taken == (
        not edges
        or (len(edges) <= wire.BATCH_MAX and edges[0].get("downstream") is not None and edges[0]["upstream"] != "")
    )


def test_a_thousand_nodes_to_add_are_taken_and_one_more_is_not() -> None:
    nodes = [
        {"key": f"n{n}", "topic": "t", "upstream": ["old", "older"], "payload": {"n": n}} for n in range(1001)
    ]
    assert check_nodes({"nodes": nodes[: wire.BATCH_MAX]})
    assert not check_nodes({"nodes": nodes})


def test_a_payload_of_a_node_to_add_at_its_limit_and_one_past_it() -> None:
    body = {"nodes": [{"key": "a", "topic": "t", "payload": "x"}]}
    assert check_nodes(body, DagSettings(payload_bytes_max=3))
    assert not check_nodes(body, DagSettings(payload_bytes_max=2))


@pytest.mark.parametrize("place", ["key", "upstream", "edge"])
@pytest.mark.parametrize("name", ["k" * 1_025, "", "a\n", "ü", 'a"', "a\\", "\x7f"])
def test_nodes_with_names_that_are_not_plain_are_left_to_the_long_way(place: str, name: str) -> None:
    node: dict[str, Any] = {"key": "a", "topic": "t"}
    body: dict[str, Any] = {"nodes": [node]}
    match place:
        case "key":
            node["key"] = name
        case "upstream":
            node["upstream"] = [name]
        case _:
            body["dependencies"] = [{"upstream": "a", "downstream": name}]
    assert not check_nodes(body)
