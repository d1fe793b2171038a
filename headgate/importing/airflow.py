"""Airflow DAGs: what `SerializedDAG` of Airflow 2 and 3 writes, or a hand-written form of the same in JSON.

{"dag_id": "etl", "tasks": [{"task_id": "extract", "operator": "BashOperator", "retries": 2},
                            {"task_id": "load", "upstream": ["extract"], "trigger_rule": "all_done"}]}
"""

from typing import Any, Final

from headgate._calls.dag import Dag
from headgate.importing.found import (
    Fault,
    Found,
    Options,
    backoff,
    load_json,
    members,
    name_of,
    pointer,
    seconds,
    shown,
    strings,
    whole,
)
from headgate.wire import INT32_MAX

_TRIGGERS: Final = {
    "all_success": "all_succeeded",
    "all_done": "all_done",
    "one_success": "any_succeeded",
    "one_failed": "any_failed",
    "none_failed": "none_failed",
}
# What comes nearest, and how it differs.
_NEAR_TRIGGERS: Final = {
    "none_failed_min_one_success": ("none_failed", "fires also when all were skipped"),
    "none_failed_or_skipped": ("none_failed", "fires also when all were skipped"),
    "all_failed": ("any_failed", "fires with the first that fails"),
    "one_done": ("all_done", "waits for all"),
    "all_done_min_one_success": ("all_done", "fires also when none succeeded"),
    "all_done_setup_success": ("all_done", "fires also when its setup failed"),
    "none_skipped": ("all_done", "fires also when one was skipped"),
    "all_skipped": ("all_done", "fires also when none was skipped"),
}
_BRANCHES: Final = ("Branch", "ShortCircuit")
_DAG_LEFT_OUT: Final = {
    "schedule_interval": "create a DAG at each time instead",
    "schedule": "create a DAG at each time instead",
    "timetable": "create a DAG at each time instead",
    "catchup": "create DAGs for the past yourself",
    "start_date": "a DAG begins when it is created",
    "end_date": "",
    "params": "",
    "max_active_runs": "",
    "max_active_tasks": "in_flight_max of the namespace comes near",
    "default_args": "only what tasks carry themselves counts",
    "has_on_failure_callback": "a node with trigger any_failed does that",
    "has_on_success_callback": "a node with trigger all_succeeded does that",
    "dag_dependencies": "",
}
_TASK_LEFT_OUT: Final = {
    "pool": "in_flight_max of the namespace comes near",
    "pool_slots": "",
    "weight_rule": "priority_weight counts as it stands",
    "execution_timeout": "a lease that is not extended ends an attempt",
    "sla": "",
    "inlets": "",
    "outlets": "",
    "start_date": "",
    "end_date": "",
    "max_active_tis_per_dag": "",
    "on_failure_callback": "a node with trigger any_failed does that",
    "on_success_callback": "a node with trigger all_succeeded does that",
    "on_retry_callback": "",
}
_TASK_CHANGED: Final = {
    "depends_on_past": "runs do not wait for one another",
    "wait_for_downstream": "runs do not wait for one another",
    "is_setup": "a setup is a node like any other",
    "is_teardown": "a teardown is a node like any other; all_done comes near",
}


def read_airflow(text: str, options: Options) -> Found:
    """A serialised DAG, or the hand-written form.

    Raises:
        Fault, Cycle
    """
    document = load_json(text)
    at = "/dag" if isinstance(document.get("dag"), dict) else ""
    source = document["dag"] if at else document
    source = source.get("__var", source) if isinstance(source.get("__var"), dict) else source
    tasks = members(source, "tasks", at, list)
    if not tasks:
        raise Fault(f"{at}/tasks", "there are no tasks; is this a serialised Airflow DAG?")
    dag_id = source.get("dag_id") or source.get("_dag_id")
    deadline_s = seconds(_plain(source.get("dagrun_timeout")))
    found = Found(Dag(name_of(dag_id), deadline_s=deadline_s))
    for name in _DAG_LEFT_OUT.keys() & source.keys():
        if source[name]:
            found.leave(name, at or "/", _DAG_LEFT_OUT[name])
    read = [_task(task, f"{at}/tasks" + pointer(i)) for i, task in enumerate(tasks)]
    for where, task in read:
        _add(found, where, task, dag_id, options)
    for where, task in read:
        _connect(found, where, task)
    return found.close()


def _plain(value: Any) -> Any:
    """A serialised value: `{"__type": "timedelta", "__var": 300.0}` is 300.0."""
    while isinstance(value, dict) and "__var" in value:
        value = value["__var"]
    return value


def _task(task: Any, where: str) -> tuple[str, dict[str, Any]]:
    plain = _plain(task)
    if not isinstance(plain, dict):
        raise Fault(where, "a task should be an object")
    return (f"{where}/__var" if plain is not task else where), plain


def _id(task: dict[str, Any], where: str) -> str:
    task_id = task.get("task_id")
    if not isinstance(task_id, str):
        raise Fault(where, "a task needs a `task_id`")
    return task_id


def _add(found: Found, where: str, task: dict[str, Any], dag_id: Any, options: Options) -> None:
    key = _id(task, where)
    operator = task.get("_task_type") or task.get("task_type") or task.get("operator")
    operator = operator if isinstance(operator, str) else None
    fields = _plain(task.get("template_fields"))
    names = [name for name in fields if isinstance(name, str)] if isinstance(fields, list) else []
    params = {name: _plain(task[name]) for name in names if task.get(name) is not None}
    payload = {"dag_id": dag_id, "task_id": key, "operator": operator, "module": task.get("_task_module")}
    payload |= {"params": params or task.get("params") or None}
    more = _attempts(task, where)
    if weight := whole(task.get("priority_weight"), f"{where}/priority_weight"):
        more["priority"] = -weight
    if task.get("_is_sensor") or task.get("is_sensor") or (operator or "").endswith("Sensor"):
        more["external"] = ["sensor"]
        found.leave(
            "sensors", where, "the node waits for external `sensor`, to be resolved by who watches", changed=True
        )
    _note(found, where, task, operator)
    topic = options.topic_of(key, operator, _plain(task.get("queue")))
    trigger = _trigger(found, where, task)
    if trigger != "all_succeeded":
        more["trigger"] = trigger
    found.node(where, key, topic, payload={name: value for name, value in payload.items() if value}, **more)


def _attempts(task: dict[str, Any], where: str) -> dict[str, Any]:
    """Without retries a task runs once."""
    retries = max(whole(_plain(task.get("retries")), f"{where}/retries") or 0, 0)
    found: dict[str, Any] = {"max_attempts": min(1 + retries, INT32_MAX)}
    delay_s = seconds(_plain(task.get("retry_delay"))) or 300.0
    if retries:
        doubling = bool(_plain(task.get("retry_exponential_backoff")))
        longest_s = seconds(_plain(task.get("max_retry_delay"))) or (86_400.0 if doubling else delay_s)
        found["backoff"] = backoff(delay_s, 2.0 if doubling else 1.0, longest_s)
    return found


def _trigger(found: Found, where: str, task: dict[str, Any]) -> str:
    rule = _plain(task.get("trigger_rule")) or "all_success"
    if not isinstance(rule, str):
        raise Fault(f"{where}/trigger_rule", "it should be a string")
    if rule in _TRIGGERS:
        if rule == "none_failed":
            found.leave(
                "none_failed",
                where,
                "a node skipped because of a failure above it counts as skipped",
                changed=True,
            )
        return _TRIGGERS[rule]
    if rule in ("always", "dummy"):
        found.leave(f"trigger rule {rule}", where, "taken as all_done: it waits", changed=True)
        return "all_done"
    near = _NEAR_TRIGGERS.get(rule)
    if near is None:
        raise Fault(f"{where}/trigger_rule", f"{shown(rule)} is no trigger rule that is known here")
    found.leave(f"trigger rule {rule}", where, f"taken as {near[0]}: {near[1]}", changed=True)
    return near[0]


def _note(found: Found, where: str, task: dict[str, Any], operator: str | None) -> None:
    if any(mark in (operator or "") for mark in _BRANCHES) or task.get("_can_skip_downstream"):
        found.leave("branches", where, "its consumer says which way by skipping the others", changed=True)
    if task.get("_is_mapped") or task.get("is_mapped") or "expand_input" in task or "mapped_op_kwargs" in task:
        found.leave("mapped tasks", where, "one node stands for all of them", changed=True)
    for name in _TASK_LEFT_OUT.keys() & task.keys():
        if task[name] and not (name == "pool" and task[name] == "default_pool"):
            found.leave(name, where, _TASK_LEFT_OUT[name])
    for name in _TASK_CHANGED.keys() & task.keys():
        if task[name]:
            found.leave(name, where, _TASK_CHANGED[name], changed=True)


def _connect(found: Found, where: str, task: dict[str, Any]) -> None:
    key = _id(task, where)
    named = {
        "downstream_task_ids": False,
        "downstream": False,
        "_upstream_task_ids": True,
        "upstream_task_ids": True,
        "upstream": True,
    }
    for name, up in named.items():
        others = _plain(task.get(name)) or []
        if not isinstance(others, list):
            raise Fault(f"{where}/{name}", "it should be a list")
        for position, other in enumerate(strings(others, f"{where}/{name}")):
            at = f"{where}/{name}/{position}"
            if other not in found.dag.nodes:
                raise Fault(at, f"there is no task {shown(other)}")
            found.depend(at, *((other, key) if up else (key, other)))
