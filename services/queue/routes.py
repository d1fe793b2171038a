"""The HTTP shape of the queue service. Each handler reads, calls the broker or its companions, and answers."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from headgate import wire
from services.queue import hot
from services.queue.dispatch import Leased
from services.queue.model import NULL, NewItem, Result
from services.queue.prefetch import START
from services.queue.process import QueueProcess
from services.queue.settle import Extension, Nack
from shared.access import Caller
from shared.errors import Forbidden, NotFound, invalid
from shared.http import body_of, caller_of, json_response, read_body
from shared.log import log

router = APIRouter()

CallerOf = Annotated[Caller, Depends(caller_of)]
Limit = Annotated[int, Query(ge=1, le=wire.PAGE_LIMIT_MAX)]
State = Literal["ready", "delayed", "leased", "disabled", "dead"]

_NAMESPACE = re.compile(wire.NAMESPACE_PATTERN).fullmatch


def process_of(request: Request) -> QueueProcess:
    """A dependency: this process's parts."""
    process: QueueProcess = request.app.state.process
    return process


ProcessOf = Annotated[QueueProcess, Depends(process_of)]


def _enter(namespace: str, caller: Caller, scope: str) -> str:
    if _NAMESPACE(namespace) is None:
        raise invalid("", "the namespace in the path must match [A-Za-z0-9._-]{1,64}")
    caller.enter(namespace)
    caller.need(scope)
    return namespace


def _check_topics(items: list[NewItem], caller: Caller) -> None:
    """A system topic, here or as ack_topic, is the system's; another namespace's ack_topic needs its door."""
    if caller.is_dag_service:
        return
    for item in items:
        if item.topic[0] == "_" or (item.ack_topic is not None and _is_system(item.ack_topic)):
            raise Forbidden("topics and namespaces that begin with `_` are the system's; use another name")


def _is_system(ack_topic: str) -> bool:
    namespace, _, topic = ack_topic.rpartition(":")
    return namespace.startswith("_") or topic.startswith("_")


# -- the hot three: raw bodies, one msgspec pass ------------------------------------------------------------


@router.post(
    "/v1/namespaces/{ns}/enqueue", status_code=201, openapi_extra={"x-body": "EnqueueRequest"}, tags=["items"]
)
async def enqueue(ns: str, request: Request, caller: CallerOf, process: ProcessOf) -> Response:
    """Take items in. One result per item, in order; `refused` elements say why."""
    _enter(ns, caller, "enqueue")
    items = hot.new_items(await read_body(request, process.settings), process.settings)
    _check_topics(items, caller)
    return json_response({"results": await process.broker.enqueue(ns, items, caller)}, 201)


@router.post("/v1/namespaces/{ns}/dequeue", openapi_extra={"x-body": "DequeueRequest"}, tags=["items"])
async def dequeue(ns: str, request: Request, caller: CallerOf, process: ProcessOf) -> Response:
    """Lease what is ready, up to each topic's count, best first; wait up to `wait_s` when nothing is."""
    _enter(ns, caller, "consume")
    call = hot.demands(await read_body(request, process.settings), process.settings)
    gone: asyncio.Future[None] | None = None
    watch: asyncio.Task[None] | None = None
    if call.wait_s > 0:
        gone = asyncio.get_running_loop().create_future()
        watch = asyncio.create_task(_watch(request, gone))
    try:
        leased = await process.broker.dequeue(ns, call.topics, lease_s=call.lease_s, wait_s=call.wait_s, gone=gone)
    finally:
        if watch is not None:
            watch.cancel()
    if leased and gone is not None and gone.done():
        await _hand_back(process, ns, leased)
        leased = []
    return json_response({"items": _leased(process, leased)})


@router.post("/v1/namespaces/{ns}/ack", openapi_extra={"x-body": "AckRequest"}, tags=["items"])
async def ack(ns: str, request: Request, caller: CallerOf, process: ProcessOf) -> Response:
    """End leased items as done. One result per item, in order."""
    _enter(ns, caller, "consume")
    items = hot.settled(await read_body(request, process.settings), process.settings)
    return json_response({"results": await process.broker.ack(ns, items)})


async def _watch(request: Request, gone: asyncio.Future[None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if not gone.done():
        gone.set_result(None)


async def _hand_back(process: QueueProcess, namespace: str, leased: list[Leased]) -> None:
    nacks = [
        Nack(key.id, row["token"], 0.0, None, None, False, False) for key, row in leased if not row["at_most_once"]
    ]
    log.info("a consumer hung up; its items are handed back", items=len(nacks))
    if nacks:
        await process.settlement.nack(namespace, nacks)


def _leased(process: QueueProcess, leased: list[Leased]) -> list[dict[str, Any]]:
    stores = process.broker.stores
    return [
        {
            "id": key.id,
            "topic": (stores[int(key.id[-3:], 16)].names.pair(row["topic_id"]) or ("", ""))[1],
            "payload": msgspec.Raw(row["payload"].encode()),
            "metadata": _raw(row["metadata"]),
            "inputs": _raw(row["inputs"]),
            "priority": row["priority"],
            "attempt": row["attempt"],
            "lease_token": row["token"],
            "lease_expires_at": row["lease_until"],
            "enqueued_at": row["enqueued_at"],
            "headers": _raw(row["headers"]),
            **({} if row["dag"] is None else {"dag": _dag(row["dag"])}),
        }
        for key, row in leased
    ]


def _raw(text: str | None) -> msgspec.Raw:
    return NULL if text is None else msgspec.Raw(text.encode())


def _dag(context: str) -> dict[str, Any]:
    found = json.loads(context)
    return {"id": found.get("dag"), "node": found.get("node"), "generation": found.get("generation")}


# -- the other verbs ----------------------------------------------------------------------------------------


@router.post("/v1/namespaces/{ns}/nack", tags=["items"])
async def nack(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.NackRequest, body_of(wire.NackRequest)],
) -> Response:
    """Give leased items back, at once or later, or fail them for good (`final`)."""
    _enter(ns, caller, "consume")
    limit = process.settings.metadata_bytes_max
    for i, item in enumerate(body.items):
        hot.check_sizes(f"/items/{i}", [("metadata", item.metadata, limit)])
    nacks = [
        Nack(
            item.id,
            item.lease_token,
            item.delay_s,
            None if item.metadata is None else json.dumps(item.metadata),
            None if item.error is None else item.error[: process.settings.error_bytes_max],
            item.final,
            item.costs_attempt,
        )
        for item in body.items
    ]
    return _results(await process.settlement.nack(ns, nacks))


@router.post("/v1/namespaces/{ns}/extend", tags=["items"])
async def extend(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.ExtendRequest, body_of(wire.ExtendRequest)],
) -> Response:
    """Let the leases of these items end `lease_s` from now."""
    _enter(ns, caller, "consume")
    items = [Extension(item.id, item.lease_token, item.lease_s) for item in body.items]
    return _results(await process.settlement.extend(ns, items))


@router.post("/v1/namespaces/{ns}/revive", tags=["items"])
async def revive(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.ReviveRequest, body_of(wire.ReviveRequest)],
) -> Response:
    """Make disabled items deliverable."""
    _enter(ns, caller, "enqueue")
    limit = process.settings.inputs_bytes_max
    for i, item in enumerate(body.items):
        hot.check_sizes(f"/items/{i}", [("inputs", item.inputs, limit)])
    items = [(item.id, None if item.inputs is None else json.dumps(item.inputs)) for item in body.items]
    return _results(await process.broker.revive(ns, items, caller))


@router.post("/v1/namespaces/{ns}/cancel", tags=["items"])
async def cancel(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.CancelRequest, body_of(wire.CancelRequest)],
) -> Response:
    """End items so that they are never delivered again; also ids that have not been enqueued yet."""
    _enter(ns, caller, "enqueue")
    return _results(await process.settlement.cancel(ns, body.ids, caller))


def _results(results: list[Result]) -> Response:
    return json_response({"results": results})


# -- queries ------------------------------------------------------------------------------------------------


@router.get("/v1/namespaces/{ns}/items/{item_id}", response_model=wire.ItemView, tags=["items"])
async def get_item(ns: str, item_id: str, caller: CallerOf, process: ProcessOf) -> Response:
    """An item and its state; 404 once it has ended."""
    _enter(ns, caller, "consume")
    return json_response(_view(await process.topics.item(ns, item_id)))


@router.get("/v1/namespaces/{ns}/items", response_model=wire.Page[wire.ItemView], tags=["items"])
async def list_items(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    topic: str | None = None,
    state: State | None = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of items, oldest first; it may hold fewer than `limit` and still have a next."""
    _enter(ns, caller, "consume")
    items, after = await process.topics.page(ns, topic, state, limit, _read_cursor(cursor))
    return json_response({"items": [_view(item) for item in items], "next_cursor": _cursor(after)})


def _view(row: dict[str, Any]) -> dict[str, Any]:
    context = _raw(row["ack_context"])
    view = {
        "id": row["id_text"],
        "namespace": row["namespace"],
        "topic": row["topic"],
        "state": row["state"],
        "payload": msgspec.Raw(row["payload"].encode()),
        "metadata": _raw(row["metadata"]),
        "inputs": _raw(row["inputs"]),
        "headers": _raw(row["headers"]),
        "priority": row["priority"],
        "attempt": row["attempts"] + (row["state"] == "leased"),
        "max_attempts": row["max_attempts"],
        "delivery": "at_most_once" if row["at_most_once"] else "at_least_once",
        "lease_s": row["lease_s"],
        "enqueued_at": row["enqueued_at"],
        "deliver_at": row["deliver_at"],
        "expires_at": row["expires_at"],
        "error": row["error"],
        "ack_context": context,
    }
    if row["ack_topic"] is not None:
        foreign = row["ack_namespace"] != row["namespace"]
        view["ack_topic"] = f"{row['ack_namespace']}:{row['ack_topic']}" if foreign else row["ack_topic"]
    if row["managed"] and row["ack_context"] is not None:
        view["dag"] = _dag(row["ack_context"])
    return view


def _cursor(after: tuple[int, str] | None) -> str | None:
    if after is None:
        return None
    return base64.urlsafe_b64encode(f"{after[0]:03x}{after[1]}".encode()).decode()


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, START[2]
    try:
        text = base64.urlsafe_b64decode(cursor.encode()).decode()
        shard, item_id = int(text[:3], 16), text[3:]
    except ValueError:
        shard, item_id = 0, ""
    if re.fullmatch(r"[0-9a-f-]{36}", item_id) is None:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged")
    return shard, item_id


# -- topics, namespaces, shards -----------------------------------------------------------------------------


@router.put("/v1/namespaces/{ns}", response_model=wire.Namespace, tags=["namespaces"])
async def put_namespace(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.NamespaceSpec, body_of(wire.NamespaceSpec)],
) -> Response:
    """Declare a namespace and set its quotas."""
    _enter(ns, caller, "admin")
    return json_response(await process.topics.set_namespace(ns, body.model_dump(exclude_none=True)))


@router.get("/v1/namespaces", response_model=wire.Page[wire.Namespace], tags=["namespaces"])
async def list_namespaces(
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Namespaces with quota and use."""
    caller.need("ops")
    return _page(await process.topics.namespaces(), "namespace", limit, cursor)


@router.get("/v1/namespaces/{ns}", response_model=wire.Namespace, tags=["namespaces"])
async def get_namespace(ns: str, caller: CallerOf, process: ProcessOf) -> Response:
    """One namespace with quota and use."""
    _enter(ns, caller, "consume")
    return json_response(await process.topics.namespace(ns))


@router.get("/v1/namespaces/{ns}/topics", response_model=wire.Page[wire.TopicStats], tags=["topics"])
async def list_topics(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Active topics with their counts."""
    _enter(ns, caller, "consume")
    return _page(await process.topics.active(ns), "topic", limit, cursor)


def _page(found: list[dict[str, Any]], field: str, limit: int, cursor: str | None) -> Response:
    try:
        after = base64.urlsafe_b64decode((cursor or "").encode()).decode()
    except ValueError:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged") from None
    rest = [entry for entry in found if entry[field] > after]
    more = base64.urlsafe_b64encode(rest[limit - 1][field].encode()).decode() if len(rest) > limit else None
    return json_response({"items": rest[:limit], "next_cursor": more})


def _topic_verb(name: str, scope: str, summary: str) -> None:
    async def handle(
        ns: str,
        caller: CallerOf,
        process: ProcessOf,
        body: Annotated[wire.TopicRequest, body_of(wire.TopicRequest)],
    ) -> Response:
        _enter(ns, caller, scope)
        if body.topic.startswith("_") and not caller.is_dag_service:
            raise Forbidden("topics that begin with `_` are the system's")
        topics = process.topics
        if name in ("pause", "resume"):
            return json_response(await topics.pause(ns, body.topic, name == "pause"))
        act = topics.purge if name == "purge" else topics.redrive
        return json_response(await act(ns, body.topic))

    handle.__doc__ = summary
    router.post(
        f"/v1/namespaces/{{ns}}/topics/{name}",
        operation_id=f"{name}_topic",
        response_model=wire.TopicChange,
        tags=["topics"],
    )(handle)


_topic_verb("pause", "admin", "Hand out nothing of this topic until it is resumed.")
_topic_verb("resume", "admin", "Go on handing out a paused topic.")
_topic_verb("purge", "admin", "Cancel every item that the topic holds; a DAG's are left alone.")
_topic_verb("redrive", "admin", "Put dead items back, with fresh attempts; a DAG's are retried in the DAG.")


@router.get("/v1/shards", response_model=wire.Page[wire.ShardHealth], tags=["shards"])
async def list_shards(
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Health of all shards, as this process sees them."""
    caller.need("ops")
    try:
        after = -1 if cursor is None else int(cursor)
    except ValueError:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged") from None
    rest = [shard for shard in await process.health.shards() if shard["shard"] > after]
    more = str(rest[limit - 1]["shard"]) if len(rest) > limit else None
    return json_response({"items": rest[:limit], "next_cursor": more})


@router.get("/v1/shards/{shard}", response_model=wire.ShardHealth, tags=["shards"])
async def get_shard(shard: str, caller: CallerOf, process: ProcessOf) -> Response:
    """Health of one shard."""
    caller.need("ops")
    if not shard.isdecimal() or not shard.isascii() or len(shard) > 4:
        raise NotFound("no shard has this number; see GET /v1/shards")
    return json_response(await process.health.shard(int(shard)))
