"""Schedules, from wire models to the service's values: times are judged and runs planned here."""

from __future__ import annotations

from headgate import wire
from services.dag.api import intake
from services.dag.queue_items import canonical
from services.dag.schedules import spec, ticking
from services.dag.settings import DagSettings
from services.dag.store.schedules import ScheduleSettings
from shared.errors import FieldError, ServiceError, invalid


def settings(schedule_id: str, body: wire.PutSchedule, limits: DagSettings) -> ScheduleSettings:
    """What a call says of a schedule.

    Raises:
        Invalid: its times mean nothing.
        ValueTooLarge, Forbidden, NodeExists, UnknownNode, Cycle, LimitExceeded: of what it runs.
    """
    return ScheduleSettings(
        spec=_spec(body.spec),
        action=canonical(body.action.model_dump(mode="json", exclude_unset=True)),
        plan=_plan(schedule_id, body.action, limits),
        overlap=body.overlap,
        catchup_s=body.catchup_s,
        jitter_s=body.jitter_s,
    )


def _spec(said: wire.ScheduleSpec) -> str:
    zone = said.tz or "UTC"
    if said.cron is not None:
        if zone not in spec.zones():
            raise invalid("/spec/tz", "there is no such time zone; it should look like Europe/Paris")
        try:
            spec.cron(said.cron, zone)
        except ValueError as error:
            raise invalid("/spec/cron", str(error)) from None
        return canonical({"cron": said.cron, "tz": zone})
    return canonical(said.model_dump(mode="json", exclude_none=True))


def _plan(schedule_id: str, action: wire.ScheduleAction, limits: DagSettings) -> str:
    """The DAG that a run is made of; the one of an item has one node, which is told what it was started for."""
    dag, at = action.dag, "/action/dag"
    if action.item is not None:
        item = action.item.model_dump(exclude_unset=True)
        node = {"key": schedule_id, "external": [ticking.GIVEN], "pass_outputs": True, **item}
        dag, at = wire.SubDag.model_validate({"nodes": [node]}), "/action/item"
    assert dag is not None, "the model sees to that"
    if dag.name is None:
        dag = dag.model_copy(update={"name": schedule_id})
    try:
        text, _ = intake.sub_dag(dag, at, limits)
    except ServiceError as error:
        if action.item is not None:
            short = f"{at}/nodes/0"
            error.errors = tuple(
                FieldError(fault.pointer.replace(short, at), fault.detail) for fault in error.errors
            )
        raise
    return text
