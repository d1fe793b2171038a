"""WfFormat, the JSON of WfCommons (https://wfcommons.org/format): 1.5, and 1.4 and before.

1.5 has `workflow.specification.tasks` (with `id`, `parents`, `children`) and `workflow.execution.tasks` (with
`command` and `runtimeInSeconds`); before, `workflow.tasks` had all of it, and parents were named.
"""

from typing import Any, Final

from headgate._calls.dag import Dag
from headgate.importing.found import (
    Fault,
    Found,
    Options,
    load_json,
    members,
    name_of,
    pointer,
    seconds,
    shown,
    strings,
)

_LEFT_OUT: Final = {
    "machines": "which machines ran it",
    "coreCount": "resources",
    "cores": "resources",
    "avgCPU": "measurements",
    "memoryInBytes": "measurements",
    "memory": "measurements",
    "energyInKWh": "measurements",
    "energy": "measurements",
    "avgPowerInW": "measurements",
    "avgPower": "measurements",
    "readBytes": "measurements",
    "bytesRead": "measurements",
    "writtenBytes": "measurements",
    "bytesWritten": "measurements",
    "priority": "an execution's priority",
}


def read_wfformat(text: str, options: Options) -> Found:
    """A WfFormat document.

    Raises:
        Fault, Cycle
    """
    document = load_json(text)
    workflow = members(document, "workflow", "", dict)
    specification = members(workflow, "specification", "/workflow", dict)
    where = "/workflow/specification/tasks" if specification else "/workflow/tasks"
    tasks = members(specification or workflow, "tasks", where.removesuffix("/tasks"), list)
    if not tasks:
        raise Fault(where, "there are no tasks; is this WfFormat?")
    ran = _executions(workflow)
    found = Found(Dag(name_of(document.get("name"))))
    names: dict[str, str] = {}
    for position, task in enumerate(tasks):
        at = where + pointer(position)
        key = members(task, "id", at, str) or members(task, "name", at, str)
        _add(found, at, key, task | ran.get(key, {}), options)
        names.setdefault(members(task, "name", at, str) or key, key)
    for position, task in enumerate(tasks):
        _connect(found, where + pointer(position), task, names)
    for name in ("machines", "makespanInSeconds", "executedAt"):
        if name in workflow or name in members(workflow, "execution", "/workflow", dict):
            found.leave(name, "/workflow", "a record of one execution")
    if specification.get("files"):
        found.leave("files", "/workflow/specification/files", "sizes; tasks keep the names")
    return found.close()


def _executions(workflow: dict[str, Any]) -> dict[str, dict[str, Any]]:
    execution = members(workflow, "execution", "/workflow", dict)
    tasks = members(execution, "tasks", "/workflow/execution", list)
    return {task["id"]: task for task in tasks if isinstance(task, dict) and isinstance(task.get("id"), str)}


def _add(found: Found, at: str, key: str, task: dict[str, Any], options: Options) -> None:
    if not key:
        raise Fault(at, "a task needs an `id` or a `name`")
    command = members(task, "command", at, dict)
    program = command.get("program") if isinstance(command.get("program"), str) else None
    files = [entry for entry in members(task, "files", at, list) if isinstance(entry, dict)]
    payload = {
        "name": task.get("name"),
        "program": program,
        "arguments": command.get("arguments"),
        "runtime_s": seconds(task.get("runtimeInSeconds", task.get("runtime"))),
        "inputs": task.get("inputFiles") or [entry.get("name") for entry in files if entry.get("link") == "input"],
        "outputs": task.get("outputFiles")
        or [entry.get("name") for entry in files if entry.get("link") == "output"],
    }
    for name in _LEFT_OUT.keys() & task.keys():
        found.leave(name, at, _LEFT_OUT[name])
    topic = options.topic_of(task.get("category"), task.get("name"), program)
    found.node(at, key, topic, payload={name: value for name, value in payload.items() if value})


def _connect(found: Found, at: str, task: dict[str, Any], names: dict[str, str]) -> None:
    nodes = found.dag.nodes
    key = task.get("id") or task.get("name")
    for relation in ("parents", "children"):
        for position, other in enumerate(strings(members(task, relation, at, list), f"{at}/{relation}")):
            other_key = other if other in nodes else names.get(other)
            if other_key is None:
                raise Fault(f"{at}/{relation}/{position}", f"there is no task {shown(other)}")
            pair = (other_key, key) if relation == "parents" else (key, other_key)
            found.depend(f"{at}/{relation}/{position}", *pair)
