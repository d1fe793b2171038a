"""The HTTP shape of what is done to many items at once, and of the dead by error."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response

from headgate import wire
from services.queue.api.routes import CallerOf, Limit, ProcessOf, SteeredOf, TopicQuery
from services.queue.api.verbs import enter
from services.queue.operations.dead_items import FIRST, TOPIC_IDS, Place
from shared.errors import Forbidden, invalid
from shared.http import cursors
from shared.http.access import Caller
from shared.http.edge import body_of, json_response
from shared.ids import ShardNo, canonical

router = APIRouter()

_CHANGED = "pass next_cursor of the page before, unchanged"


@router.post(
    "/v1/namespaces/{ns}/operations",
    response_model=wire.Operation | wire.OperationPreview,
    responses={202: {"model": wire.Operation, "description": "It goes on by itself"}},
    tags=["operations"],
)
async def begin_operation(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.OperationSpec, body_of(wire.OperationSpec)],
) -> Response:
    """Purge, redrive or cancel all items that a filter means; or with `dry_run` show which these are.

    Answers when it is done (200), or after a few seconds with how far it is (202): it goes on by itself.
    Items that are enqueued later, or die later, are not touched; a DAG's are left alone. With an `id` of the
    caller's (as an item's) the call may be repeated: the same id is the same operation.
    """
    enter(ns, caller, "admin")
    given = body.filter.model_dump(mode="json", exclude_none=True)
    _may_touch(caller, given.get("topic"))
    if body.dry_run:
        return json_response(await process.operations.preview(ns, body.kind, given))
    found = await process.operations.start(ns, body.kind, given, body.id)
    return json_response(found, 202 if found["state"] == "running" else 200)


@router.get("/v1/namespaces/{ns}/operations", response_model=wire.SpreadPage[wire.Operation], tags=["operations"])
async def list_operations(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of operations, newest first; those that ended a week ago are gone."""
    enter(ns, caller, "consume", "ops")
    before = canonical(cursor) if cursor is not None else None
    if cursor is not None and before is None:
        raise invalid("/cursor", _CHANGED)
    items, after, away = await process.operations.page(ns, limit, before)
    return json_response(cursors.page(items, after, away))


@router.get("/v1/namespaces/{ns}/operations/{operation}", response_model=wire.Operation, tags=["operations"])
async def get_operation(ns: str, operation: str, caller: CallerOf, process: ProcessOf) -> Response:
    """An operation and how far it is, by shard."""
    enter(ns, caller, "consume", "ops")
    return json_response(await process.operations.get(ns, operation))


@router.post(
    "/v1/namespaces/{ns}/operations/{operation}/cancel", response_model=wire.Operation, tags=["operations"]
)
async def cancel_operation(
    ns: str,
    operation: str,
    caller: CallerOf,
    process: SteeredOf,
    _body: Annotated[wire.Empty, body_of(wire.Empty)],
) -> Response:
    """Stop an operation where it is; what it did stays done. One that has ended stays as it is."""
    enter(ns, caller, "admin")
    return json_response(await process.operations.cancel(ns, operation))


@router.get("/v1/namespaces/{ns}/dead", response_model=wire.SpreadPage[wire.DeadGroup], tags=["topics"])
async def list_dead(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    topic: TopicQuery = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Dead items by topic and kind of error, most first.

    Numbers, hexadecimal numbers and UUIDs in errors count as the same. A page covers a bounded number of
    items; groups that come on several pages are to be added up.
    """
    enter(ns, caller, "consume", "ops")
    query = f"dead|{ns}|{topic}"
    groups, after, away = await process.dead.groups(ns, topic, limit, _place(query, cursor))
    return json_response(cursors.page(groups, None if after is None else _cursor(query, *after), away))


def _may_touch(caller: Caller, topic: str | None) -> None:
    if topic is not None and topic.startswith("_") and not caller.is_dag_service:
        raise Forbidden("topics that begin with `_` are the system's")


def _cursor(query: str, shard: ShardNo, place: Place) -> str:
    topic_id, at, item_id = place
    return cursors.encode(query, f"{shard}|{topic_id}|{at.isoformat()}|{item_id}")


def _place(query: str, cursor: str | None) -> tuple[ShardNo, Place]:
    """The shard, and the place in it, that a cursor goes on after."""
    if cursor is None:
        return ShardNo(0), FIRST
    try:
        shard, topic_id, at, item_id = cursors.decode(query, cursor).split("|")
        place = int(topic_id), datetime.fromisoformat(at), canonical(item_id) or FIRST[2]
        if place[1].tzinfo is None or not TOPIC_IDS[0] <= place[0] <= TOPIC_IDS[1]:
            raise ValueError(cursor)
        return ShardNo(int(shard)), place
    except ValueError:
        raise invalid("/cursor", _CHANGED) from None
