"""The HTTP shape of workflows: people name a run by the workflow's id, deciders by its DAG."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from headgate import wire
from headgate.wire.workflow import ResetRun, ResumeRun, RunUpdate, UpdateSpec
from services.dag.api import run_views, verbs, workflow_intake
from services.dag.api.parts import Orchestrator
from services.dag.api.routing import (
    DAG_PATH,
    CallerOf,
    Limit,
    NamespaceOf,
    NamespaceOfDecider,
    OrchestratorOf,
    clean,
    path_name,
)
from services.dag.api.views import raw
from services.dag.errors import WorkflowFinished
from services.dag.store.runs import ShownRun
from services.dag.workflows.starting import Started
from services.dag.workflows.values import NewRun, Update
from shared.errors import ShardUnavailable
from shared.http import cursors
from shared.http.edge import body_of, json_response

router = APIRouter(tags=["workflows"])

_PATH = "/v1/namespaces/{ns}/workflows"
_ONE = _PATH + "/{workflow}"
_STARTS_MAX = 8

After = Annotated[int, Query(ge=0, le=2**53)]
WaitS = Annotated[float, Query(ge=0, le=wire.WAIT_S_MAX)]


@router.post(
    _PATH,
    status_code=201,
    response_model=wire.WorkflowRun,
    responses={200: {"model": wire.WorkflowRun, "description": "The run that the id means already"}},
    operation_id="workflow_start",
)
async def start(
    ns: NamespaceOf, duties: OrchestratorOf, body: Annotated[wire.StartWorkflow, body_of(wire.StartWorkflow)]
) -> Response:
    """Start a run, or find the living one of this id; `existing` tells which. Give an id, and the call may be sent
    again."""
    wanted = workflow_intake.new_run(body, duties.context.settings)
    started = await _started(ns, duties, wanted)
    found = await duties.runs.of_dag(ns, started.dag_id)
    return json_response(_view(found) | {"existing": started.existing}, 200 if started.existing else 201)


@router.get(_PATH, response_model=wire.SpreadPage[wire.WorkflowRun], operation_id="workflows")
async def list_runs(
    ns: NamespaceOf,
    duties: OrchestratorOf,
    type: Annotated[str | None, Query()] = None,
    state: Annotated[wire.RunState | None, Query()] = None,
    stuck: Annotated[bool, Query()] = False,
    version: Annotated[str | None, Query()] = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of runs, newest first."""
    found, more, away = await duties.runs.page(
        ns,
        type=clean("type", type),
        state=state,
        version=clean("version", version),
        stuck=stuck,
        limit=limit,
        cursor=cursor,
    )
    return json_response(cursors.page([_view(run) for run in found], more, away))


@router.get(_ONE, response_model=wire.WorkflowRun, operation_id="workflow")
async def show(ns: NamespaceOf, workflow: str, duties: OrchestratorOf) -> Response:
    """The last run of a workflow's id."""
    return json_response(_view(await duties.runs.run(ns, path_name("workflow", workflow))))


@router.get(_ONE + "/wait", response_model=wire.WorkflowRun, operation_id="workflow_wait")
async def wait(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, timeout_s: WaitS = wire.WAIT_S_MAX
) -> Response:
    """The same, when it is over or at the timeout."""
    return json_response(_view(await duties.runs.wait(ns, path_name("workflow", workflow), timeout_s)))


@router.get(_ONE + "/history", response_model=wire.RunHistory, operation_id="workflow_history")
async def history(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, after: After = 0, wait_s: WaitS = 0.0
) -> Response:
    """A page of the run's events behind `after`, where there are none after up to `wait_s`; `more` says whether
    there is another."""
    found = await duties.runs.history_of(ns, path_name("workflow", workflow), after, wait_s)
    return json_response(run_views.history_view(found))


@router.post(_ONE + "/signals", status_code=202, response_model=wire.Accepted, operation_id="workflow_signal")
async def signal(
    ns: NamespaceOf,
    workflow: str,
    duties: OrchestratorOf,
    body: Annotated[wire.SignalSpec, body_of(wire.SignalSpec)],
) -> Response:
    """Tell the run something; it is kept until the code receives it. The same `id` again adds nothing."""
    return json_response(await verbs.signal(duties, ns, path_name("workflow", workflow), body), 202)


@router.post(_ONE + "/updates", response_model=RunUpdate, operation_id="workflow_update")
async def update(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, body: Annotated[UpdateSpec, body_of(UpdateSpec)]
) -> Response:
    """Tell the run something that its code answers, and wait for that up to `wait_s`. The same `id` again adds
    nothing, and is answered alike."""
    told = workflow_intake.signal(body, duties.context.settings)
    workflow_id = path_name("workflow", workflow)
    await duties.run_control.signal(ns, workflow_id, told)
    return json_response(_update_view(await duties.runs.update(ns, workflow_id, told.id, body.wait_s)))


@router.get(_ONE + "/updates/{update}", response_model=RunUpdate, operation_id="workflow_update_state")
async def show_update(
    ns: NamespaceOf, workflow: str, update: str, duties: OrchestratorOf, wait_s: WaitS = 0.0
) -> Response:
    """What became of an update, once it is answered or after `wait_s`."""
    found = await duties.runs.update(ns, path_name("workflow", workflow), path_name("update", update), wait_s)
    return json_response(_update_view(found))


@router.post(_ONE + "/cancel", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_cancel")
async def cancel(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, body: Annotated[wire.Reasoned, body_of(wire.Reasoned)]
) -> Response:
    """Ask the run to end; its code may clean up."""
    dag_id = await duties.run_control.cancel(ns, path_name("workflow", workflow), body.reason)
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.post(
    _ONE + "/terminate", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_terminate"
)
async def terminate(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, body: Annotated[wire.Reasoned, body_of(wire.Reasoned)]
) -> Response:
    """End the run; its code hears nothing of it."""
    dag_id = await duties.run_control.terminate(ns, path_name("workflow", workflow), body.reason)
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.post(_ONE + "/pause", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_pause")
async def pause(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, _body: Annotated[wire.Reasoned, body_of(wire.Reasoned)]
) -> Response:
    """Release nothing more of the run, until it is resumed; `reason` is for who reads the audit log."""
    dag_id = await duties.run_control.pause(ns, path_name("workflow", workflow))
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.post(_ONE + "/resume", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_resume")
async def resume(
    ns: NamespaceOf,
    caller: CallerOf,
    workflow: str,
    duties: OrchestratorOf,
    body: Annotated[ResumeRun, body_of(ResumeRun)],
) -> Response:
    """Go on with a run that is paused or has failed, and at once with one that is stuck, whose code was mended; or
    with other `outputs` of what it has asked for, and with what of it is to be done once more (`retry`). What it
    asked for since the first of these ends is void."""
    workflow_id = path_name("workflow", workflow)
    if body.outputs or body.retry:
        other = workflow_intake.replacing(body, duties.context.settings, caller.token_id)
        dag_id = await duties.rewriter.resume(ns, workflow_id, other)
    else:
        dag_id = await duties.run_control.resume(ns, workflow_id)
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.post(_ONE + "/reset", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_reset")
async def reset(
    ns: NamespaceOf,
    caller: CallerOf,
    workflow: str,
    duties: OrchestratorOf,
    body: Annotated[ResetRun, body_of(ResetRun)],
) -> Response:
    """Let the run's code go on from an earlier event that it was told of, whether the run is over or not. What it
    asked for since is void, and cancelled where it has not ended; signals and what else happened stay."""
    wanted = workflow_intake.reset(body, caller.token_id)
    dag_id = await duties.rewriter.reset(ns, path_name("workflow", workflow), wanted)
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.post(_ONE + "/move", status_code=202, response_model=wire.WorkflowRun, operation_id="workflow_move")
async def move(
    ns: NamespaceOf, workflow: str, duties: OrchestratorOf, body: Annotated[wire.MoveRun, body_of(wire.MoveRun)]
) -> Response:
    """Let workers of another version go on with the run: of this one only, or, with null, of any."""
    dag_id = await duties.run_control.move(ns, path_name("workflow", workflow), body.version)
    return json_response(_view(await duties.runs.of_dag(ns, dag_id)), 202)


@router.get(DAG_PATH + "/run", response_model=wire.WorkflowRun, operation_id="run_of_dag")
async def run_of_dag(ns: NamespaceOf, dag: str, duties: OrchestratorOf) -> Response:
    """The run that a DAG is, which need not be the last of its workflow's id."""
    return json_response(_view(await duties.runs.of_dag(ns, dag)))


@router.get(DAG_PATH + "/history", response_model=wire.RunHistory, operation_id="run_history")
async def run_history(
    ns: NamespaceOf, dag: str, duties: OrchestratorOf, after: After = 0, wait_s: WaitS = 0.0
) -> Response:
    """A page of a run's events behind `after`, for its decider; where there are none, after up to `wait_s`."""
    return json_response(run_views.history_view(await duties.runs.history(ns, dag, after, wait_s)))


@router.post(DAG_PATH + "/turn", response_model=wire.TurnTaken, operation_id="run_turn")
async def take_turn(
    ns: NamespaceOfDecider,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.TakeTurn, body_of(wire.TakeTurn)],
) -> Response:
    """A decider's turn, all of it or nothing; the same turn again is answered again. See docs/workflows.md."""
    turn = workflow_intake.turn(body, duties.context.settings)
    return json_response(run_views.turn_view(await duties.turns.take(ns, dag, turn)))


async def _started(ns: str, duties: Orchestrator, wanted: NewRun) -> Started:
    """A run that was there already is sent the call's signal; if it ends before that, its id may mean another."""
    for _ in range(_STARTS_MAX):
        started = await duties.starter.start(ns, wanted)
        if wanted.signal is None or not started.existing or started.over:
            return started
        with suppress(WorkflowFinished):
            await duties.run_control.signal(ns, wanted.workflow_id, wanted.signal)
            return started
    raise ShardUnavailable("the runs of this id end too fast; send the call again", retry_after_s=1.0)


def _update_view(update: Update) -> dict[str, Any]:
    return {"id": update.id, "status": update.status, "output": raw(update.output), "error": update.error}


def _view(found: ShownRun) -> dict[str, Any]:
    run = found.run
    stuck = None
    if run.stuck is not None:
        stuck = json.loads(run.stuck) | {"attempts": run.stuck_attempts, "since": run.stuck_since}
    return {
        "id": run.workflow_id,
        "run": run.dag_id,
        "type": run.type,
        "version": run.version,
        "state": run.state,
        "parked": found.parked and not run.over,
        "paused": found.paused,
        "stuck": stuck,
        "published": {key: msgspec.Raw(value.encode()) for key, value in found.published.items()},
        "seen": run.seen,
        "turn": run.turn,
        "last_event": run.last_event,
        "resets": run.resets,
        "parent": found.parent,
        "continued_as": run.continued_as,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
        "output": raw(run.output),
        "error": run.error,
    }
