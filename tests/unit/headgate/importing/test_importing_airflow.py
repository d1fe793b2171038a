"""Airflow: rules, retries, sensors, and what Airflow has and a DAG has not."""

from typing import Any

import pytest

from headgate.importing import Fault
from tests.unit.headgate.importing.test_importing import edges_of, noted, read

AIRFLOW = {
    "__version": 1,
    "dag": {
        "_dag_id": "etl",
        "timetable": {"__type": "cron", "__var": {}},
        "catchup": False,
        "dagrun_timeout": {"__type": "timedelta", "__var": 3600.0},
        "tasks": [
            {
                "__type": "operator",
                "__var": {
                    "task_id": "extract",
                    "_task_type": "BashOperator",
                    "_task_module": "airflow.operators.bash",
                    "template_fields": ["bash_command", "env"],
                    "bash_command": "echo 1",
                    "retries": 2,
                    "retry_delay": 60.0,
                    "retry_exponential_backoff": True,
                    "priority_weight": 5,
                    "pool": "small",
                    "downstream_task_ids": ["choose", "late"],
                },
            },
            {"task_id": "choose", "_task_type": "BranchPythonOperator", "downstream_task_ids": ["join"]},
            {
                "task_id": "wait",
                "_task_type": "S3KeySensor",
                "pool": "default_pool",
                "downstream_task_ids": ["join"],
            },
            {"task_id": "join", "trigger_rule": "one_done", "_is_mapped": True},
            {"task_id": "late", "trigger_rule": "one_success", "depends_on_past": True},
        ],
    },
}


def test_airflow_tasks_with_their_rules_retries_and_sensors() -> None:
    found = read("airflow", AIRFLOW, topics={"BashOperator": "shell"})
    nodes = found.dag.nodes
    assert edges_of(found) == {("extract", "choose"), ("extract", "late"), ("choose", "join"), ("wait", "join")}
    extract = nodes["extract"]
    assert (found.dag.name, extract.topic, nodes["join"].topic) == ("etl", "shell", "import")
    assert extract.options["max_attempts"] == 3 and extract.options["priority"] == -5
    assert extract.options["backoff"] == {"base_s": 60.0, "factor": 2.0, "max_s": 43_200.0}
    assert extract.options["payload"]["params"] == {"bash_command": "echo 1"}
    assert nodes["choose"].options["max_attempts"] == 1
    assert nodes["wait"].external == ["sensor"]
    assert (nodes["join"].options["trigger"], nodes["late"].options["trigger"]) == ("all_done", "any_succeeded")
    effects = noted(found)
    for what in ("branches", "sensors", "mapped tasks", "trigger rule one_done", "depends_on_past"):
        assert effects[what] == "changed", what
    assert effects["timetable"] == effects["pool"] == "left out" and "catchup" not in effects
    assert found.dag.body()["deadline_s"] == 3600.0


def test_the_hand_written_form() -> None:
    source = {
        "dag_id": "d",
        "tasks": [{"task_id": "a"}, {"task_id": "b", "upstream": ["a"], "trigger_rule": "all_done"}],
    }
    found = read("airflow", source)
    assert edges_of(found) == {("a", "b")} and found.unmapped == []


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"tasks": []}, "/tasks: there are no tasks"),
        ({"tasks": [{"id": "a"}]}, "/tasks/0: a task needs a `task_id`"),
        ({"tasks": [{"task_id": "a", "upstream": ["b"]}]}, "/tasks/0/upstream/0: there is no task 'b'"),
        (
            {"dag": {"tasks": [{"__var": {"task_id": "a", "trigger_rule": "some"}}]}},
            "/dag/tasks/0/__var/trigger_rule",
        ),
        ({"tasks": [{"task_id": "a", "upstream": "b"}]}, "/tasks/0/upstream: it should be a list"),
    ],
)
def test_faults_of_airflow_say_where(source: Any, where: str) -> None:
    with pytest.raises(Fault) as fault:
        read("airflow", source)
    assert where in str(fault.value)


@pytest.mark.parametrize(
    "rule", ["all_failed", "none_skipped", "all_skipped", "always", "none_failed_min_one_success"]
)
def test_rules_that_have_no_like_are_said_to_change(rule: str) -> None:
    source = {"tasks": [{"task_id": "a"}, {"task_id": "b", "upstream": ["a"], "trigger_rule": rule}]}
    assert noted(read("airflow", source)) == {f"trigger rule {rule}": "changed"}
