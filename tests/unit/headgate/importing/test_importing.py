"""Graphs of other systems: what is read, what is said not to map, and what is refused with its place."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import wire
from headgate.errors import Cycle
from headgate.importing import READERS, Fault, Found, Options
from headgate.importing import found as found_module
from tests.support.examples import examples

Graph = dict[str, list[str]]


def edges_of(found: Found) -> set[tuple[str, str]]:
    return {(up, node.key) for node in found.dag.nodes.values() for up in node.upstream}


def noted(found: Found) -> dict[str, str]:
    return {entry.what: entry.effect for entry in found.unmapped}


def read(form: str, source: Any, **options: Any) -> Found:
    text = source if isinstance(source, str) else json.dumps(source)
    found = READERS[form](text, Options(**options))
    for node in found.dag.nodes.values():
        wire.NodeSpec.model_validate({**node.body(), "upstream": None})
    return found


# Writers, for the round trips


def as_wfformat(graph: Graph) -> Any:
    tasks = [{"name": f"n-{key}", "id": key, "parents": ups, "children": []} for key, ups in graph.items()]
    return {"name": "w", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks}}}


def as_old_wfformat(graph: Graph) -> Any:
    tasks: list[dict[str, Any]] = [{"name": key, "children": []} for key in graph]
    for key, ups in graph.items():
        for up in ups:
            next(task for task in tasks if task["name"] == up)["children"].append(key)
    return {"name": "w", "schemaVersion": "1.4", "workflow": {"tasks": tasks}}


def as_make(graph: Graph) -> str:
    def word(key: str) -> str:
        return key.replace("\\", "").replace("#", "\\#").replace(":", "\\:").replace(" ", "\\ ")

    return "".join(f"{word(key)}: {' '.join(map(word, ups))}\n\trun {key!r}\n" for key, ups in graph.items())


def as_airflow(graph: Graph) -> Any:
    downs: Graph = {key: [down for down, ups in graph.items() if key in ups] for key in graph}
    tasks = [{"__type": "operator", "__var": {"task_id": key, "downstream_task_ids": downs[key]}} for key in graph]
    return {"__version": 1, "dag": {"_dag_id": "a", "tasks": tasks}}


def as_states(depths: Any) -> Any:
    """A tree of sequences and parallels: a list is a sequence, a tuple parallel branches."""
    states: dict[str, Any] = {}
    names = [f"{step}" if isinstance(step, str) else f"p{id(step)}-{i}" for i, step in enumerate(depths)]
    for i, step in enumerate(depths):
        after = {"Next": names[i + 1]} if i + 1 < len(depths) else {"End": True}
        if isinstance(step, str):
            states[step] = {"Type": "Task", "Resource": "arn:x:work", **after}
        else:
            branches = [as_states(branch) for branch in step]
            states[names[i]] = {"Type": "Parallel", "Branches": branches, **after}
    return {"StartAt": names[0], "States": states}


@st.composite
def graphs(draw: st.DrawFn, alphabet: str) -> Graph:
    keys = draw(st.lists(st.text(alphabet, min_size=1, max_size=5), min_size=1, max_size=8, unique=True))
    graph = {key: [up for up in keys[:i] if draw(st.booleans())] for i, key in enumerate(keys)}
    return {key: graph[key] for key in draw(st.permutations(keys))}


def expected(graph: Graph) -> set[tuple[str, str]]:
    return {(up, key) for key, ups in graph.items() for up in ups}


@pytest.mark.parametrize(
    ("form", "write", "alphabet"),
    [
        ("wfformat", as_wfformat, "aé/ :#+$%"),
        ("wfformat", as_old_wfformat, "aé/ :#+$%"),
        ("make", as_make, "abC_+./ :#"),
        ("airflow", as_airflow, "ab._-é"),
    ],
)
def test_every_node_and_edge_survives(form: str, write: Any, alphabet: str) -> None:
    @settings(max_examples=examples(30, nightly=100), deadline=None)
    @given(graphs(alphabet))
    def survives(graph: Graph) -> None:
        if form == "make" and any(not key.strip(" .") or key[0] == "." or "|" in key for key in graph):
            return
        found = read(form, write(graph))
        assert set(found.dag.nodes) == set(graph)
        assert edges_of(found) == expected(graph)

    survives()


@st.composite
def sequences(draw: st.DrawFn, depth: int = 0, names: Any = None) -> list[Any]:
    names = names if names is not None else iter(f"s{i}" for i in range(1000))
    steps: list[Any] = [next(names)]
    for _ in range(draw(st.integers(0, 3))):
        if depth < 2 and draw(st.booleans()):
            steps.append(tuple(draw(sequences(depth + 1, names)) for _ in range(draw(st.integers(1, 3)))))
        else:
            steps.append(next(names))
    return steps


def walk(steps: list[Any], before: set[str], edges: set[tuple[str, str]]) -> set[str]:
    for step in steps:
        if isinstance(step, str):
            edges |= {(up, step) for up in before}
            before = {step}
        else:
            before = set().union(*(walk(branch, before, edges) for branch in step))
    return before


@settings(max_examples=examples(30, nightly=100), deadline=None)
@given(sequences())
def test_sequences_and_parallels_are_the_edges_they_mean(steps: list[Any]) -> None:
    edges: set[tuple[str, str]] = set()
    walk(steps, set(), edges)
    assert edges_of(read("states", as_states(steps))) == edges


# WfFormat


def test_wfformat_tasks_carry_their_command_and_kind() -> None:
    document = as_wfformat({"t1": [], "t2": ["t1"]})
    document["workflow"]["specification"]["tasks"][0]["inputFiles"] = ["in.txt"]
    document["workflow"]["execution"] = {
        "makespanInSeconds": 9,
        "tasks": [
            {
                "id": "t1",
                "runtimeInSeconds": 2.5,
                "command": {"program": "mProject", "arguments": ["-x"]},
                "coreCount": 1,
            }
        ],
    }
    found = read("wfformat", document, topic="t", topics={"mProject": "project"})
    first, second = found.dag.nodes["t1"], found.dag.nodes["t2"]
    assert (found.dag.name, first.topic, second.topic) == ("w", "project", "t")
    assert first.options["payload"] == {
        "name": "n-t1",
        "program": "mProject",
        "arguments": ["-x"],
        "runtime_s": 2.5,
        "inputs": ["in.txt"],
    }
    assert noted(found) == {"coreCount": "left out", "makespanInSeconds": "left out"}


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("{", "line 1: this is not JSON"),
        ("[]", "it should hold a JSON object"),
        ("[" * 200_000, "it nests over 256 levels deep"),
        ({"workflow": {"tasks": []}}, "/workflow/tasks: there are no tasks"),
        (
            {"workflow": {"tasks": [{"name": "a", "parents": ["b"]}]}},
            "/workflow/tasks/0/parents/0: there is no task 'b'",
        ),
        ({"workflow": {"tasks": [{"name": "a"}, {"name": "a"}]}}, "/workflow/tasks/1: 'a' is there twice"),
        ({"workflow": {"tasks": [{"name": "a", "parents": ["a"]}]}}, "'a' waits for itself"),
        ({"workflow": {"tasks": [{"name": "x" * 1_025}]}}, "cannot be a key"),
        (
            {"workflow": {"tasks": [{"name": "a", "parents": [1]}]}},
            "/workflow/tasks/0/parents/0: it should be a string",
        ),
        ({"workflow": {"tasks": {"a": 1}}}, "/workflow/tasks: it should be a list"),
        ({"workflow": {"tasks": [7]}}, "/workflow/tasks/0: it should be an object"),
    ],
)
def test_faults_say_where(source: Any, where: str) -> None:
    with pytest.raises(Fault) as fault:
        read("wfformat", source)
    assert where in str(fault.value)


def test_cycles_are_named() -> None:
    with pytest.raises(Cycle, match=r"a -> b -> a|b -> a -> b"):
        read("wfformat", as_wfformat({"a": ["b"], "b": ["a"]}))


def test_numbers_of_nodes_and_edges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_module, "NODES_MAX", 3)
    monkeypatch.setattr(found_module, "EDGES_MAX", 2)
    read("wfformat", as_wfformat({"a": [], "b": ["a"], "c": ["a"]}))
    with pytest.raises(Fault, match="over 3 nodes"):
        read("wfformat", as_wfformat({"a": [], "b": [], "c": [], "d": []}))
    with pytest.raises(Fault, match="over 2 edges"):
        read("wfformat", as_wfformat({"a": [], "b": ["a"], "c": ["a", "b"]}))


def test_a_payload_over_the_limit_loses_its_largest_part() -> None:
    document = as_wfformat({"a": []})
    document["workflow"]["specification"]["tasks"][0] |= {"inputFiles": ["f" * 100] * 1_000, "outputFiles": ["o"]}
    found = read("wfformat", document)
    assert found.dag.nodes["a"].options["payload"] == {"name": "n-a", "outputs": ["o"]}
    assert noted(found)["payload field inputs"] == "left out"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "workflow",
                    "tasks",
                    "specification",
                    "parents",
                    "name",
                    "id",
                    "command",
                    "files",
                    "dag",
                    "__var",
                    "retries",
                    "task_id",
                    "trigger_rule",
                    "StartAt",
                    "States",
                    "Type",
                    "Next",
                    "Branches",
                    "Retry",
                    "Choices",
                    "upstream",
                ]
            ),
            inner | st.sampled_from(["a", "Task", "Parallel", "Choice", "all_done"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("form", ["wfformat", "airflow", "states"])
def test_no_json_is_more_than_read_or_refused(form: str) -> None:
    @settings(max_examples=examples(100, nightly=300), deadline=None)
    @given(JSON)
    def refused(source: Any) -> None:
        with contextlib.suppress(Fault, Cycle):
            read(form, source)

    refused()
