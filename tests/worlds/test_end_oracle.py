"""What is told of how DAGs ended is judged: reasons, DAGs in the place of nodes, what compensations are given, and
what is left of a retry."""

from collections.abc import Callable

import pytest

from tests.worlds.dag_facts import Act, Dag, Node
from tests.worlds.facts import TICK_S
from tests.worlds.test_oracles import World


def _cancelled(world: World, *reasons: str, shown: str) -> None:
    for nth, reason in enumerate(reasons):
        at_s = 2.0 + nth
        world.dag.acts.append(Act("cancel", (), "ok", at_s, at_s + TICK_S / 2, 202, body={"reason": reason}))
    world.dag.shown["reason"] = shown


def _the_second_reason(world: World) -> None:
    _cancelled(world, "whim 1", "whim 2", shown="whim 2")


def _a_reason_of_nobody(world: World) -> None:
    _cancelled(world, "whim 1", shown="whim 2")


def _no_reason(world: World) -> None:
    world.dag.body["deadline_s"] = 5.0
    world.dag.shown["state"], world.dag.views["down"]["state"] = "failed", "cancelled"


def _another_end_below(world: World) -> None:
    below = world.facts.new(Dag("d/down", "red", {}, 1.0))
    world.facts.named(below, "B")
    below.shown = {"state": "failed"}
    world.dag.views["down"]["dag"] = "B"


def _nothing_to_undo(world: World) -> None:
    _undo(world, {})


def _another_to_undo(world: World) -> None:
    _undo(world, {"up": "evil", "payload:up": 1})


def _a_reference_to_undo(world: World) -> None:
    _undo(world, {"$ref": "/v1/namespaces/red/dags/D/node/inputs"})


def _more_to_undo(world: World) -> None:
    _undo(world, {"up": "right", "payload:up": 1, "inputs:up": {}})


def _a_timer_with_an_item(world: World) -> None:
    _undo(world, {"up": None, "payload:up": None}, timer={"delay_s": 1.0})


def _a_payload_of_a_dag(world: World) -> None:
    _undo(world, {"up": {}, "payload:up": 1}, dag={"nodes": []})


def _undo(world: World, inputs: dict[str, object], **of: object) -> None:
    world.dag.nodes["up"].spec |= of
    world.dag.nodes["undo"] = Node("undo", {"key": "undo", "compensates": "up", "pass_outputs": True}, 1.0)
    world.deliver("undo", 1, 6.0, inputs=inputs)


def _left_dead(world: World) -> None:
    world.history.left["up1"] = "dead"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_the_second_reason, "it was being cancelled before"),
        (_a_reason_of_nobody, "which nobody gave"),
        (_no_reason, "no reason is told"),
        (_another_end_below, "and the DAG in its place, B, failed"),
        (_nothing_to_undo, "and was given {}"),
        (_another_to_undo, "and was given {'up': 'evil'"),
        (_a_reference_to_undo, "and was given {'$ref'"),
        (_more_to_undo, "and was given {'up': 'right', 'payload:up': 1, 'inputs:up': {}}"),
        (_a_timer_with_an_item, "and was given {'up': None"),
        (_a_payload_of_a_dag, "and was given {'up': {}"),
        (_left_dead, "lie dead"),
    ],
)
def test_a_wrong_end_is_told(fault: Callable[[World], None], says: str) -> None:
    world = World()
    fault(world)
    found = world.judged()
    assert any(says in line for line in found), found


def test_a_right_end_is_right() -> None:
    world = World()
    _cancelled(world, "whim 1", "whim 2", shown="whim 1")
    _undo(world, {"up": "right", "payload:up": 1})
    assert not [line for line in world.judged() if "reason" in line or "was given" in line]


@pytest.mark.parametrize(
    ("of", "inputs"),
    [
        ({"pass_outputs": True}, {"up": "right", "payload:up": 1, "inputs:up": {}}),
        ({"timer": {"delay_s": 1.0}}, {}),
        ({"dag": {"nodes": []}}, {"up": {"inner": 1}}),
    ],
    ids=["a node that was given something", "a timer", "a DAG in a node's place"],
)
def test_a_compensation_is_told_of_what_there_is(of: dict[str, object], inputs: dict[str, object]) -> None:
    world = World()
    _undo(world, inputs, **of)
    assert not [line for line in world.judged() if "was given" in line and "undoes" in line]


def test_a_cancel_after_a_retry_gives_its_own_reason() -> None:
    world = World()
    _cancelled(world, "whim 1", shown="whim 1")
    world.dag.acts.append(Act("retry", (), "ok", 2.5, 2.5, 202, body={}))
    world.dag.acts.append(Act("cancel", (), "ok", 2.6, 2.6, 202, body={"reason": "whim 2"}))
    world.dag.shown["reason"] = "whim 2"
    assert not [line for line in world.judged() if "reason" in line]
