"""The HTTP shape of workers: who they are, and what they are told."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headgate import wire
from headgate.wire.workers import WorkerNews, WorkerReport, WorkerView
from services.queue.api.routes import CallerOf, Limit, ProcessOf, SteeredOf, name_in
from services.queue.api.verbs import enter
from services.queue.operations.known_workers import Report, Topic
from shared.http import cursors
from shared.http.edge import body_of, json_response

router = APIRouter()


@router.get(
    "/v1/namespaces/{ns}/workers",
    response_model=wire.SpreadPage[WorkerView],
    operation_id="list_workers",
    tags=["workers"],
)
async def list_workers(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
    gone: Annotated[bool, Query(description="those that were there lately, instead")] = False,
) -> Response:
    """Workers that are there, by name; with `gone` those that went lately.

    A killed one is there for its lease at most. A page may hold fewer than `limit`, or none, and have a next.
    """
    enter(ns, caller, "consume", "ops")
    query = f"workers|{ns}|{gone}"
    found, rest, away = await process.workers.page(ns, limit, name_in(query, cursor), gone=gone)
    next_cursor = None if rest is None else cursors.encode(query, rest)
    return json_response(cursors.page(found, next_cursor, away))


@router.post(
    "/v1/namespaces/{ns}/workers",
    response_model=WorkerNews,
    operation_id="report_worker",
    tags=["workers"],
)
async def report_worker(
    ns: str,
    caller: CallerOf,
    process: SteeredOf,
    body: Annotated[WorkerReport, body_of(WorkerReport)],
) -> Response:
    """A worker says what it is and does; the answer comes after `wait_s`, or as soon as items were cancelled that
    may be its own.

    `cancelled` names items of the namespace that somebody held a moment ago. It is news only: an extend says what
    is true. A worker that does not ask hears of a cancel with its next extend, ack or nack.
    """
    enter(ns, caller, "consume")
    report = Report(
        body.name,
        body.host,
        body.version,
        [Topic(each.topic, each.slots, each.running) for each in body.topics],
        body.lease_s,
        body.age_s,
        body.wait_s,
        body.leaving,
    )
    return json_response({"cancelled": await process.workers.report(ns, report)})
