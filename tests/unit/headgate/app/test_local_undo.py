"""What compensations of DAGs in memory are given: what the service gives them, and nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest

from headgate._app.local.dag import LocalDag, LocalNode

UNDO = {"key": "undo", "topic": "u", "compensates": "undone", "pass_outputs": True}


def undone(spec: dict[str, Any], undo: dict[str, Any], output: Any) -> LocalNode:
    """The compensation of a node that has succeeded in a DAG whose next one has failed."""
    delivered: list[LocalNode] = []
    nodes: list[dict[str, Any]] = [
        {"key": "undone", **spec},
        {"key": "ship", "topic": "s", "upstream": ["undone"]},
    ]
    dag = LocalDag(
        "d",
        {},
        now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
        new_id=lambda: "i",
        deliver=delivered.append,
        ended=lambda _dag: None,
    )
    dag.add([*nodes, undo])
    dag.go_on()
    dag.end(dag.nodes["undone"], "succeeded", output)
    dag.end(dag.nodes["ship"], "failed", error="no")
    assert [node.key for node in delivered] == ["undone", "ship", "undo"]
    return delivered[-1]


@pytest.mark.parametrize(
    ("spec", "output", "told"),
    [
        ({"dag": {"nodes": []}}, {"inner": 7}, {"undone": {"inner": 7}}),
        ({"topic": "t"}, 7, {"undone": 7, "payload:undone": None}),
        ({"topic": "t", "payload": 1}, None, {"payload:undone": 1}),
        (
            {"topic": "t", "payload": 1, "pass_outputs": True},
            7,
            {"undone": 7, "payload:undone": 1, "inputs:undone": {}},
        ),
    ],
    ids=["a DAG", "an item without a payload", "an item without an output", "an item that was given nothing"],
)
def test_a_compensation_in_memory_is_told_what_the_service_tells_it(
    spec: dict[str, Any], output: Any, told: dict[str, Any]
) -> None:
    """`tests/integration/dag/test_compensation_input.py` has the same of the service."""
    assert undone(spec, UNDO, output).inputs == told


def test_a_compensation_in_memory_that_asks_for_nothing_is_told_nothing() -> None:
    assert undone({"topic": "t"}, {**UNDO, "pass_outputs": False}, 7).inputs is None
