"""Step Functions: sequences, parallels, choices, waits, retries."""

from typing import Any

import pytest

from headgate.importing import Fault
from tests.unit.headgate.importing.test_importing import edges_of, noted, read


def test_waits_retries_and_data_of_states() -> None:
    found = read(
        "states",
        {
            "Comment": "c",
            "TimeoutSeconds": 90,
            "StartAt": "First",
            "States": {
                "First": {"Type": "Pass", "Result": 1, "Next": "Fetch"},
                "Fetch": {
                    "Type": "Task",
                    "Resource": "arn:aws:lambda:eu:1:function:fetch",
                    "HeartbeatSeconds": 30,
                    "Retry": [
                        {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "MaxAttempts": 4, "BackoffRate": 3}
                    ],
                    "Next": "Pause",
                },
                "Pause": {"Type": "Wait", "Seconds": 10, "Next": "Pause2"},
                "Pause2": {"Type": "Wait", "Seconds": 5, "Next": "Store"},
                "Store": {"Type": "Task", "Resource": "store", "Catch": [{"Next": "Sorry"}], "Next": "Done"},
                "Done": {"Type": "Succeed"},
                "Sorry": {"Type": "Task", "Resource": "apologise", "End": True},
            },
        },
        topics={"fetch": "web"},
    )
    fetch, store = found.dag.nodes["Fetch"], found.dag.nodes["Store"]
    assert set(found.dag.nodes) == {"Fetch", "Store"} and edges_of(found) == {("Fetch", "Store")}
    assert (fetch.topic, fetch.options["max_attempts"], fetch.options["lease_s"]) == ("web", 5, 30.0)
    assert fetch.options["backoff"] == {"base_s": 2.0, "factor": 3.0, "max_s": 43_200.0}
    assert (store.options["delay_s"], store.options["pass_outputs"]) == (15.0, True)
    assert found.dag.body()["deadline_s"] == 90.0
    assert noted(found) == {
        "Catch": "changed",
        "states that only a Catch leads to": "changed",
        "Result": "left out",
    }


def test_the_ways_of_a_choice_meet_again() -> None:
    found = read(
        "states",
        {
            "StartAt": "Which",
            "States": {
                "Which": {"Type": "Choice", "Choices": [{"Next": "A"}, {"Next": "B"}], "Default": "End"},
                "A": {"Type": "Task", "Next": "End"},
                "B": {"Type": "Map", "Next": "Seen"},
                "Seen": {"Type": "Pass", "Next": "End"},
                "End": {"Type": "Task", "End": True},
            },
        },
    )
    assert edges_of(found) == {("Which", "A"), ("Which", "B"), ("Which", "End"), ("A", "End"), ("B", "End")}
    assert found.dag.nodes["End"].options["trigger"] == "none_failed"
    assert "trigger" not in found.dag.nodes["A"].options
    assert noted(found) == {"Choice": "changed", "Map": "changed"}


@pytest.mark.parametrize(
    ("machine", "where"),
    [
        ({}, "/StartAt"),
        ({"StartAt": "x", "States": {}}, "there is no state 'x'"),
        ({"StartAt": "a", "States": {"a": {"Type": "Task", "Next": "b"}}}, "there is no state 'b'"),
        ({"StartAt": "a", "States": {"a": {"Type": "Jump", "End": True}}}, "/States/a/Type"),
        (
            {
                "StartAt": "a",
                "States": {"a": {"Type": "Task", "Next": "b"}, "b": {"Type": "Choice", "Default": "a"}},
            },
            "the states lead back: a -> b -> a",
        ),
        ({"StartAt": "a", "States": {"a": {"Type": "Pass", "End": True}}}, "nothing in it that could be a node"),
        (
            {"StartAt": "a", "States": {"a": {"Type": "Parallel", "Branches": [{"StartAt": "z"}], "End": True}}},
            "/States/a/Branches/0/States: there is no state 'z'",
        ),
    ],
)
def test_faults_of_states_say_where(machine: Any, where: str) -> None:
    with pytest.raises(Fault) as fault:
        read("states", machine)
    assert where in str(fault.value)


def test_states_of_one_name_in_several_branches_keep_apart() -> None:
    branch = {"StartAt": "Work", "States": {"Work": {"Type": "Task", "End": True}}}
    machine = {"StartAt": "P", "States": {"P": {"Type": "Parallel", "Branches": [branch, branch], "End": True}}}
    assert list(read("states", machine).dag.nodes) == ["Work", "P/1/Work"]
