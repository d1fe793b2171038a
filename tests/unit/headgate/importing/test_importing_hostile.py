"""Files made to break who reads them: each ends soon, as a DAG within its limits or as one sentence of why not."""

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import Cycle
from headgate.importing import Fault, make, states
from headgate.importing.found import PAYLOAD_DEPTH_MAX
from headgate.wire import INT32_MAX
from tests.support.examples import examples
from tests.unit.headgate.importing.test_importing import read


def nested(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = [found]
    return found


DOCUMENTS: dict[str, dict[str, Any]] = {
    "wfformat": {
        "name": "w",
        "workflow": {
            "specification": {
                "tasks": [
                    {"id": "a", "name": "n", "children": ["b"], "files": [{"link": "input", "name": "f"}]},
                    {"id": "b", "name": "n", "parents": ["a"], "command": {"program": "p", "arguments": ["-x"]}},
                ]
            },
            "execution": {"tasks": [{"id": "a", "runtimeInSeconds": 3, "category": "c"}]},
        },
    },
    "airflow": {
        "dag": {
            "dag_id": "d",
            "dagrun_timeout": {"__type": "timedelta", "__var": 60.0},
            "tasks": [
                {
                    "__type": "operator",
                    "__var": {
                        "task_id": "a",
                        "downstream_task_ids": ["b"],
                        "retries": 2,
                        "retry_delay": 60,
                        "max_retry_delay": 600,
                        "retry_exponential_backoff": True,
                        "template_fields": ["bash_command"],
                        "bash_command": "ls",
                        "_task_type": "BashOperator",
                        "priority_weight": 3,
                        "queue": "q",
                        "pool": "p",
                    },
                },
                {"task_id": "b", "trigger_rule": "all_done", "params": {"x": 1}},
            ],
        }
    },
    "states": {
        "StartAt": "w",
        "Comment": "c",
        "TimeoutSeconds": 60,
        "States": {
            "w": {"Type": "Wait", "Seconds": 5, "Next": "p"},
            "p": {
                "Type": "Parallel",
                "Branches": [{"StartAt": "a", "States": {"a": {"Type": "Task", "Resource": "r", "End": True}}}],
                "Next": "c",
            },
            "c": {"Type": "Choice", "Choices": [{"Variable": "$.x", "Next": "t"}], "Default": "t"},
            "t": {
                "Type": "Task",
                "Parameters": {"x": 1},
                "HeartbeatSeconds": 30,
                "Retry": [
                    {"ErrorEquals": ["States.ALL"], "MaxAttempts": 2, "BackoffRate": 2.0, "MaxDelaySeconds": 9}
                ],
                "End": True,
            },
        },
    },
}
HOSTILE = [
    "null", "true", "0", "-1", "1" + "0" * 12, "-1" + "0" * 12,
    "1" + "0" * 400, "1e308", "-1.5", '""', '"%s"' % ("x" * 300),
    '"a\\nb"', '"\\u0000"', '"\\ud800"', "[]", "{}", '["a"]', "[[]]", '{"": ""}', '{"a": "b"}', "[1]", "[null]",
    "[" * 40 + "]" * 40, "[" * 2_000 + "]" * 2_000, '{"__var":' * 500 + "1" + "}" * 500,
]  # fmt: skip


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, *path, name)


class Text(NamedTuple):
    """A value as JSON text."""

    text: str


def text_of(value: Any) -> str:
    """A document as JSON, with its texts as they are."""
    if isinstance(value, Text):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{text_of(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize("form", DOCUMENTS)
def test_whatever_stands_in_a_place_the_file_is_read_or_refused(form: str) -> None:
    every = [path for path in places(DOCUMENTS[form]) if path]

    @settings(max_examples=examples(150, nightly=600), deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(every), st.sampled_from(HOSTILE)), min_size=1, max_size=3))
    def read_or_refused(changes: list[tuple[tuple[Any, ...], str]]) -> None:
        document = copy.deepcopy(DOCUMENTS[form])
        for (*path, last), value in changes:
            holder: Any = document
            with contextlib.suppress(KeyError, IndexError, TypeError):
                for name in path:
                    holder = holder[name]
                holder[last] = Text(value)
        try:
            found = read(form, text_of(document), topics={"c": "mapped"})
        except (Fault, Cycle) as fault:
            assert len(str(fault)) < 600 and str(fault).isprintable(), "one sentence"
        else:
            for node in found.dag.nodes.values():
                json.dumps(node.options, allow_nan=False).encode()
                assert abs(node.options.get("priority", 0)) <= INT32_MAX >= node.options.get("max_attempts", 0)

    read_or_refused()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("9" * 400, "9" * 60 + "... is over 19 digits long"),
        ("-" + "9" * 5_000, "is over 19 digits long"),
        ("1e999", "1e999 is more than a number can be"),
        ("NaN", "NaN is no JSON number"),
        ("Infinity", "Infinity is no JSON number"),
    ],
)
@pytest.mark.parametrize("form", DOCUMENTS)
def test_numbers_that_nothing_can_hold_are_told(form: str, number: str, told: str) -> None:
    source = text_of({**DOCUMENTS[form], "extra": 71}).replace("71", number)
    with pytest.raises(Fault, match=r"digits|number") as fault:
        read(form, source)
    assert told in str(fault.value)


@pytest.mark.parametrize(
    ("form", "path", "told"),
    [
        ("airflow", "/dag/tasks/1/priority_weight", "2147483648 is too much: at most 2147483647 are taken"),
        ("airflow", "/dag/tasks/1/retries", "2147483648 is too much"),
        ("states", "/States/t/Retry/0/MaxAttempts", "2147483648 is too much"),
    ],
)
def test_numbers_that_the_service_does_not_take_are_told_with_their_place(form: str, path: str, told: str) -> None:
    document = copy.deepcopy(DOCUMENTS[form])
    holder: Any = document
    *names, last = path.split("/")[1:]
    for name in names:
        holder = holder[int(name) if isinstance(holder, list) else name]
    holder[last] = INT32_MAX + 1
    with pytest.raises(Fault) as fault:
        read(form, document)
    assert str(fault.value).startswith(f"{path}: {told}")


def test_half_a_character_is_told() -> None:
    with pytest.raises(Fault, match="half of a surrogate pair"):
        read("wfformat", r'{"workflow": {"tasks": [{"name": "\ud83d"}]}}')
    whole = read("wfformat", r'{"workflow": {"tasks": [{"name": "\ud83d\ude00"}, {"name": "\\ud83d"}]}}')
    assert list(whole.dag.nodes) == ["\U0001f600", r"\ud83d"]


def test_what_nests_too_deep_for_a_payload_is_left_out_of_it() -> None:
    for levels, kept in ((PAYLOAD_DEPTH_MAX - 1, True), (PAYLOAD_DEPTH_MAX, False), (200, False)):
        task = {"Type": "Task", "Parameters": nested(levels), "Resource": "r", "End": True}
        found = read("states", {"StartAt": "a", "States": {"a": task}})
        assert ("parameters" in found.dag.nodes["a"].options["payload"]) is kept
        assert any(entry.what == "payload field parameters" for entry in found.unmapped) is not kept


def parallels(count: int, inner: dict[str, Any]) -> dict[str, Any]:
    """One Parallel of two like branches after another, behind a Task."""
    found: dict[str, Any] = {"t": {"Type": "Task", "Next": "p0"}}
    for number in range(count):
        branches = [{"StartAt": "x", "States": {"x": {**inner, "Seconds": 2**number * at}}} for at in (0, 1)]
        found[f"p{number}"] = {"Type": "Parallel", "Branches": branches, "Next": f"p{number + 1}"}
    return {"StartAt": "t", "States": {**found, f"p{count}": {"Type": "Task", "End": True}}}


@pytest.mark.parametrize("inner", [{"Type": "Pass", "End": True}, {"Type": "Wait", "Next": "y"}])
def test_ways_through_parallels_do_not_double_with_each(inner: dict[str, Any]) -> None:
    machine = parallels(40, inner)
    for state in machine["States"].values():
        for branch in state.get("Branches", ()):
            branch["States"]["y"] = {"Type": "Pass", "End": True}
    found = read("states", machine)
    assert found.dag.nodes["p40"].upstream == ["t"] and found.edges == 1
    if inner["Type"] == "Wait":
        assert any(entry.what == "Wait on one of several ways" for entry in found.unmapped)


def test_ways_past_many_states_that_are_no_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "EDGES_MAX", 1_000)
    task, branches = {"Type": "Task", "End": True}, []
    for number in range(20):
        branches.append({"StartAt": f"t{number}", "States": {f"t{number}": task}})
    passes = {f"s{number}": {"Type": "Pass", "Next": f"s{number + 1}"} for number in range(100)}
    machine = {"p": {"Type": "Parallel", "Branches": branches, "Next": "s0"}, **passes, "s100": task}
    with pytest.raises(Fault, match="ways through Pass, Wait and Parallel states are over 1000"):
        read("states", {"StartAt": "p", "States": machine})


def test_long_names_and_long_loops_are_told_in_short() -> None:
    with pytest.raises(Fault, match="is too long a name") as fault:
        read("states", {"StartAt": "x" * 9_000, "States": {"x" * 9_000: {"Type": "Pass", "End": True}}})
    assert len(str(fault.value)) < 300
    ring = {f"s{number}": {"Type": "Pass", "Next": f"s{(number + 1) % 9_000}"} for number in range(9_000)}
    with pytest.raises(Fault, match=r"lead back: s0 -> s1 .* -> \.\.\. -> .* -> s0;"):
        read("states", {"StartAt": "s0", "States": ring})


def test_variables_that_multiply_nothing_are_refused() -> None:
    """Their text is empty, so nothing grows but the number of paths."""
    bomb = "A0 =\n" + "".join(f"A{i} = {f'$(A{i - 1})' * 10}\n" for i in range(1, 15))
    with pytest.raises(Fault, match="expand to over"):
        read("make", bomb + "a: $(A14)\n")


def test_a_variable_that_is_read_in_vain_again_and_again_is_refused() -> None:
    source = f"A = {'x' * 100_000} $(nowhere)\n" + "a: $(A)\n" * 1_000
    with pytest.raises(Fault, match="expand to over"):
        read("make", source)


def test_a_variable_grows_by_many_lines() -> None:
    found = read("make", "A = n0\n" + "".join(f"A += n{i}\n" for i in range(1, 50_000)) + "a: $(A)\nn49999:\n")
    assert found.dag.nodes["a"].upstream == ["n49999"]


def test_targets_times_prerequisites_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "EDGES_MAX", 1_000)
    with pytest.raises(Fault, match="line 1: there are over 1000 prerequisites"):
        read("make", f"{' '.join(f't{i}' for i in range(50))}: {' '.join(f'n{i}' for i in range(50))}\n")
    monkeypatch.setattr(make, "NODES_MAX", 10)
    with pytest.raises(Fault, match="line 11: there are over 10 targets"):
        read("make", "".join(f"t{i}:\n" for i in range(20)))


def test_a_recipe_of_many_targets_is_kept_once_and_no_more_of_it_than_a_payload_holds() -> None:
    targets = [f"t{i}" for i in range(1_000)]
    found = read(
        "make", f"{' '.join(targets)}:\n" + "\techo x\n" * 10_000 + "last: ; one\n\ttwo\nlast:\n\tthree\n"
    )
    recipes = [found.dag.nodes[target].options["payload"]["recipe"] for target in targets]
    assert recipes[0] == ["echo x"] * 100 and len({id(recipe) for recipe in recipes}) == 1
    assert found.dag.nodes["last"].options["payload"]["recipe"] == ["three"], "the last one counts, as in Make"
    large = read("make", "a:\n" + f"\t{'x' * 1_000_000}\n" * 50)
    assert large.dag.nodes["a"].options["payload"] == {"target": "a"}
    assert any(entry.what == "payload field recipe" for entry in large.unmapped)
