"""A schedule as a caller says it, and as the service takes it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypedDict

from headgate import wire
from headgate._calls.dag import Dag
from headgate._calls.elements import BackoffSpec
from headgate._calls.verbs import present


class ScheduleOptions(TypedDict, total=False):
    """What a schedule may carry besides its times and what it runs.

    overlap: what happens to a slot while a run is unfinished. `skip` (the default) leaves it out, `buffer_one`
        keeps one for the run's end, `buffer_all` up to 100, `allow` starts it, `terminate_other` too, and cancels
        the others, `cancel_other` cancels the run, and starts the slot when that is over.
    catchup_s: how late a run may begin after an outage; 3600 by default.
    jitter_s: each slot is put off by a part of it.
    paused: whether slots pass.
    metadata, priority, max_attempts, backoff, lease_s, ttl_s, timeout_s: of the item, where there is a topic.
    """

    overlap: wire.Overlap
    catchup_s: float
    jitter_s: float
    paused: bool
    metadata: dict[str, Any]
    priority: int
    max_attempts: int
    backoff: BackoffSpec
    lease_s: float
    ttl_s: float
    timeout_s: float


def dag_of(dag: Dag | None, workflow: str | None, input: Any, overlap: wire.Overlap | None = None) -> Dag | None:
    """What runs: a graph as it was given, or one whose only node is a workflow, which `terminate_other` ends at
    once; `cancel_other` lets it clean up.

    Raises:
        ValueError: both are given, or an input and no workflow.
    """
    if workflow is None:
        if input is not None:
            raise ValueError("input belongs to a workflow")
        return dag
    if dag is not None:
        raise ValueError("give one of topic=, dag= and workflow=")
    made = Dag(workflow)
    made.workflow("workflow", workflow, input, parent_close="terminate" if overlap == "terminate_other" else None)
    return made


def schedule_body(
    cron: str | None,
    tz: str | None,
    interval_s: float | None,
    at: datetime | Iterable[datetime] | None,
    topic: str | None,
    payload: Any,
    dag: Dag | None,
    options: ScheduleOptions,
) -> dict[str, Any]:
    """A schedule as the service takes it.

    Raises:
        ValueError: it says nothing of what is to run, or two things.
    """
    if (topic is None) == (dag is None):
        raise ValueError("give one of topic=, dag= and workflow=")
    times = [at] if isinstance(at, datetime) else None if at is None else list(at)
    said: dict[str, Any] = {**options}
    kept: dict[str, Any] = {
        name: said.pop(name) for name in ("overlap", "catchup_s", "jitter_s", "paused") if name in said
    }
    if dag is None:
        action: dict[str, Any] = {"item": {"topic": topic, **present(payload=payload), **said}}
    elif said or payload is not None:
        raise ValueError(f"{', '.join([*said, 'payload'][:1])} belongs to a topic's item")
    else:
        action = {"dag": dag.within()}
    return {"spec": present(cron=cron, tz=tz, interval_s=interval_s, at=times), "action": action, **kept}
