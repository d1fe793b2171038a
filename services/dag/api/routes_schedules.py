"""The HTTP shape of schedules."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response

from headgate import wire
from services.dag.api import schedule_intake
from services.dag.api.routing import Limit, NamespaceOf, OrchestratorOf, path_name
from services.dag.store.schedules import Schedule, Tick
from shared.http import cursors
from shared.http.edge import body_of, json_response

router = APIRouter(tags=["schedules"])

_PATH = "/v1/namespaces/{ns}/schedules"
_ONE = _PATH + "/{schedule}"


@router.put(
    _ONE,
    status_code=201,
    response_model=wire.Schedule,
    responses={200: {"model": wire.Schedule, "description": "It was there, and is replaced"}},
    operation_id="schedule_put",
)
async def put(
    ns: NamespaceOf,
    schedule: str,
    duties: OrchestratorOf,
    body: Annotated[wire.PutSchedule, body_of(wire.PutSchedule)],
) -> Response:
    """Make a schedule, or replace it. The same call again changes nothing: where the times stay the same, the next
    slot stays the same."""
    said = schedule_intake.settings(path_name("schedule", schedule), body, duties.context.settings)
    found, is_new = await duties.schedules.put(ns, schedule, said, paused=body.paused)
    return json_response(_view(found), 201 if is_new else 200)


@router.get(_PATH, response_model=wire.SpreadPage[wire.Schedule], operation_id="schedules")
async def list_schedules(
    ns: NamespaceOf,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of schedules, by id; it may hold fewer than `limit` and still have a next."""
    found, more, away = await duties.schedules.page(ns, limit=limit, cursor=cursor)
    return json_response(cursors.page([_view(each) for each in found], more, away))


@router.get(_ONE, response_model=wire.Schedule, operation_id="schedule")
async def get(ns: NamespaceOf, schedule: str, duties: OrchestratorOf) -> Response:
    """A schedule."""
    return json_response(_view(await duties.schedules.get(ns, path_name("schedule", schedule))))


@router.delete(_ONE, response_model=wire.ScheduleDeleted, operation_id="schedule_delete")
async def delete(ns: NamespaceOf, schedule: str, duties: OrchestratorOf) -> Response:
    """Delete a schedule, its ticks, and what waits for its turn; runs that were started go on."""
    deleted = await duties.schedules.delete(ns, path_name("schedule", schedule))
    return json_response({"id": schedule, "deleted": deleted})


@router.post(_ONE + "/pause", response_model=wire.Schedule, operation_id="schedule_pause")
async def pause(
    ns: NamespaceOf,
    schedule: str,
    duties: OrchestratorOf,
    body: Annotated[wire.PauseSchedule, body_of(wire.PauseSchedule)],
) -> Response:
    """Let slots pass until it is resumed; each is on record as skipped."""
    found = await duties.schedules.pause(ns, path_name("schedule", schedule), paused=True, reason=body.reason)
    return json_response(_view(found))


@router.post(_ONE + "/resume", response_model=wire.Schedule, operation_id="schedule_resume")
async def resume(
    ns: NamespaceOf, schedule: str, duties: OrchestratorOf, _body: Annotated[wire.Empty, body_of(wire.Empty)]
) -> Response:
    """Go on, with the next slot."""
    return json_response(_view(await duties.schedules.pause(ns, path_name("schedule", schedule), paused=False)))


@router.post(_ONE + "/trigger", response_model=wire.Tick, operation_id="schedule_trigger")
async def trigger(
    ns: NamespaceOf,
    schedule: str,
    duties: OrchestratorOf,
    body: Annotated[wire.TriggerSchedule, body_of(wire.TriggerSchedule)],
) -> Response:
    """One run now, also of a paused schedule; where one is unfinished, the overlap policy decides. With the same
    `request_id` again the answer is that of the first time."""
    tick = await duties.schedules.trigger(ns, path_name("schedule", schedule), body.at, body.request_id)
    return json_response(_tick(tick))


@router.post(_ONE + "/backfill", status_code=202, response_model=wire.Backfilled, operation_id="schedule_backfill")
async def backfill(
    ns: NamespaceOf,
    schedule: str,
    duties: OrchestratorOf,
    body: Annotated[wire.BackfillSchedule, body_of(wire.BackfillSchedule)],
) -> Response:
    """Run the slots after `start` up to `end` once more: one after another, or at once where overlap is
    allowed."""
    count = await duties.schedules.backfill(
        ns, path_name("schedule", schedule), body.start, body.end, body.overlap, body.request_id
    )
    return json_response({"slots": count}, 202)


@router.get(_ONE + "/ticks", response_model=wire.Page[wire.Tick], operation_id="schedule_ticks")
async def ticks(
    ns: NamespaceOf,
    schedule: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of what became of slots, newest first."""
    found, more = await duties.schedules.ticks(ns, path_name("schedule", schedule), limit=limit, cursor=cursor)
    return json_response({"items": [_tick(tick) for tick in found], "next_cursor": more})


def _view(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.id,
        "namespace": schedule.namespace,
        "spec": msgspec.Raw(schedule.spec.encode()),
        "action": msgspec.Raw(schedule.action.encode()),
        "overlap": schedule.overlap,
        "catchup_s": schedule.catchup_s,
        "jitter_s": schedule.jitter_s,
        "paused": schedule.paused,
        "reason": schedule.reason,
        "next_at": schedule.next_at,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
    }


def _tick(tick: Tick) -> dict[str, Any]:
    found = tick._asdict()
    return {"tick": found.pop("no"), **found}
