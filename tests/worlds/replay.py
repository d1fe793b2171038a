"""What the services show of DAGs in the end: nodes, and every change since the beginning, by the public calls."""

import json
from datetime import datetime
from random import Random
from typing import Any

from tests.worlds.control_verbs import all_ended, find_sub
from tests.worlds.dag_facts import Dag

_BEGIN = {"blocked", "released", "skipped", "failed", "cancelled"}
# Within one generation.
_FOLLOW = {
    "blocked": {"released", "skipped", "failed", "cancelled"},
    "released": {"succeeded", "failed", "cancelled"},
}


async def read(world: Any) -> list[str]:
    """Read the nodes and the events of every DAG; what is wrong with them by themselves."""
    found: list[str] = []
    rng = Random(world.seed)
    for (dag_id, _, _), came in list(world.dags.deliveries.items()):
        if await find_sub(world, rng, came[0].namespace, dag_id) is None:
            found.append(f"items came of {dag_id}, a DAG that nobody made: {came[0]}")
    await all_ended(world, rng)
    for dag in [dag for dag in world.dags.all if dag.id is not None]:
        nodes = await world.pages(rng, world.dag, dag.namespace, f"/dags/{dag.id}/nodes")
        answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/events", method="GET")
        if nodes is None or answer.known != "ok":
            found.append(f"{dag.name} ({dag.id}) cannot be read: {answer}")
            continue
        dag.views = {view["key"]: view for view in nodes}
        dag.events = [_event(line) for line in answer.body.splitlines() if line.startswith("data: ")]
        found += [f"{dag.name} ({dag.id}): {fault}" for fault in _faults(dag)]
    return found


def _event(line: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    event["at_s"] = datetime.fromisoformat(event["at"]).timestamp()
    return event


def _faults(dag: Dag) -> list[str]:
    """Changes are numbered without a gap, each may follow the one before, and the last ones are what is shown."""
    found = []
    stood: dict[str, tuple[str, int]] = {}
    state = "running"
    for number, event in enumerate(dag.events, 1):
        if event["id"] != str(number):
            found.append(f"event {event['id']} is the {number}.")
        if event["kind"] == "dag":
            state = event["state"]
            if state in ("succeeded", "failed", "cancelled"):
                left = [key for key, (of, _) in stood.items() if of in ("blocked", "released")]
                found += [f"it ended {state} while {left} had not"] if left else []
            continue
        key, now = event["key"], (event["state"], event["generation"])
        was = stood.get(key)
        stood[key] = now
        if was is None:
            fits = now[1] == 1 and now[0] in _BEGIN
        elif now[1] == was[1]:
            fits = now[0] in _FOLLOW.get(was[0], ())
        else:
            fits = now[1] == was[1] + 1 and now[0] in _BEGIN
        if not fits:
            found.append(f"{key} was {was} and became {now}")
    shown = {key: (view["state"], view["generation"]) for key, view in dag.views.items()}
    if shown != stood:
        differ = {
            key: (shown.get(key), stood.get(key)) for key in {**shown, **stood} if shown.get(key) != stood.get(key)
        }
        found.append(f"events do not lead to what is shown (shown, told): {differ}")
    if state != dag.shown["state"] or dag.shown["last_event_id"] != str(len(dag.events)):
        found.append(f"it is shown {dag.shown['state']} at {dag.shown['last_event_id']}, told {state}")
    counts = {of: count for of, count in dag.shown["nodes"].items() if of != "total"}
    facts = {of: sum(now[0] == of for now in shown.values()) for of in counts}
    if counts != facts or dag.shown["nodes"]["total"] != len(shown):
        found.append(f"it counts {dag.shown['nodes']} and has {facts}")
    return found
