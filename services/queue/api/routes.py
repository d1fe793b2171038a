"""The HTTP shape of the queue service. Each handler reads, calls the room that the verb is of, and answers."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response

from headgate import wire
from services.queue.api.parts import QueueProcess
from services.queue.api.verbs import enter
from services.queue.gates.limits import TopicLimits
from services.queue.keys.key_buffer import START
from services.queue.model import NULL
from services.queue.operations.topics import ShownItem
from services.queue.quotas import Quota
from services.queue.store.dequeue_encoding import dag_of
from shared.admission.connection_priority import Urgency
from shared.errors import Forbidden, NotFound, invalid
from shared.http import cursors
from shared.http.access import Caller
from shared.http.edge import body_of, caller_of, json_response
from shared.http.hot_path import Verb, documented
from shared.ids import ShardNo

router = APIRouter()

_PLACE = re.compile(r"[0-9a-f]{3}[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

CallerOf = Annotated[Caller, Depends(caller_of)]
TopicQuery = Annotated[str | None, Query(pattern=wire.TOPIC_PATTERN)]
Limit = Annotated[int, Query(ge=1, le=wire.PAGE_LIMIT_MAX)]
State = Literal["ready", "delayed", "leased", "disabled", "dead"]


async def process_of(request: Request) -> QueueProcess:
    """A dependency: this process's parts."""
    process: QueueProcess = request.app.state.process
    request.app.state.lag.let_in(Urgency.LIST)
    return process


async def steered_of(request: Request) -> QueueProcess:
    """A dependency: this process's parts, for calls by which operators end an overload."""
    process: QueueProcess = request.app.state.process
    request.app.state.lag.let_in(Urgency.SETTLE)
    return process


ProcessOf = Annotated[QueueProcess, Depends(process_of)]
SteeredOf = Annotated[QueueProcess, Depends(steered_of)]


def add_verbs(app: FastAPI, verbs: dict[str, Verb]) -> None:
    """Document the hot verbs as routes of the app."""
    for name, verb in verbs.items():
        model = f"{name.capitalize()}Request"
        app.post(
            f"/v1/namespaces/{{ns}}/{name}",
            operation_id=name,
            description=verb.serve.__doc__,
            status_code=201 if name == "enqueue" else 200,
            openapi_extra={"x-body": model},
            response_model=_REPLIES[name],
            tags=["items"],
        )(documented(verb))


_REPLIES: dict[str, Any] = {
    "enqueue": wire.Results[wire.EnqueueResult],
    "dequeue": wire.DequeueReply,
    "ack": wire.Results[wire.AckResult],
    "nack": wire.Results[wire.NackResult],
    "extend": wire.Results[wire.ExtendResult],
    "revive": wire.Results[wire.ReviveResult],
    "cancel": wire.Results[wire.CancelResult],
}


# -- queries ------------------------------------------------------------------------------------------------


@router.get("/v1/namespaces/{ns}/items/{item_id}", response_model=wire.ItemView, tags=["items"])
async def get_item(ns: str, item_id: str, caller: CallerOf, process: ProcessOf) -> Response:
    """An item and its state; 404 once it has ended."""
    enter(ns, caller, "consume", "ops")
    return json_response(_view(await process.topics.item(ns, item_id)))


@router.get("/v1/namespaces/{ns}/items", response_model=wire.SpreadPage[wire.ItemView], tags=["items"])
async def list_items(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    topic: TopicQuery = None,
    state: State | None = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of items, oldest first; it may hold fewer than `limit` and still have a next."""
    enter(ns, caller, "consume", "ops")
    query = f"items|{ns}|{topic}|{state}"
    items, after, away = await process.topics.page(ns, topic, state, limit, _place(query, cursor))
    more = None if after is None else cursors.encode(query, f"{after[0]:03x}{after[1]}")
    return json_response(cursors.page([_view(item) for item in items], more, away))


@router.post("/v1/namespaces/{ns}/items/states", response_model=wire.Results[wire.ItemStanding], tags=["items"])
async def item_states(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.ItemStates, body_of(wire.ItemStates)],
) -> Response:
    """Where up to 1,000 items stand: `found`, `not_found` (ended, or never seen) or `refused`, each."""
    enter(ns, caller, "consume", "ops")
    return json_response({"results": await process.item_states.look(ns, body.ids)})


@router.post(
    "/v1/namespaces/{ns}/items/attempts",
    response_model=wire.Results[wire.ItemAttempts],
    operation_id="items_attempts",
    tags=["items"],
)
async def items_attempts(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.ItemStates, body_of(wire.ItemStates)],
) -> Response:
    """The last deliveries that failed of up to 1,000 items of DAGs: of each error the end."""
    enter(ns, caller, "consume", "ops")
    return json_response({"results": await process.item_states.attempts_of_many(ns, body.ids)})


@router.get(
    "/v1/namespaces/{ns}/items/{item_id}/attempts",
    response_model=wire.Page[wire.ItemAttempt],
    operation_id="item_attempts",
    tags=["items"],
)
async def item_attempts(
    ns: str,
    item_id: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """The first deliveries of a DAG's item that failed, oldest first; also of one that has ended."""
    enter(ns, caller, "consume", "ops")
    found = await process.item_states.attempts(ns, item_id)
    return json_response(cursors.cut(f"attempts|{item_id}", found, "attempt", limit, cursor))


def _view(shown: ShownItem) -> dict[str, Any]:
    item = shown.item
    context = _raw(item.ack_context)
    view = {
        "id": item.id_text,
        "namespace": item.namespace,
        "topic": item.topic,
        "state": item.state,
        "payload": msgspec.Raw(item.payload.encode()),
        "metadata": _raw(item.metadata),
        "inputs": _raw(item.inputs),
        "headers": _raw(item.headers),
        "priority": item.priority,
        "attempt": item.attempts + (item.state == "leased"),
        "max_attempts": item.max_attempts,
        "delivery": "at_most_once" if item.at_most_once else "at_least_once",
        "lease_s": item.lease_s,
        "enqueued_at": item.enqueued_at,
        "deliver_at": item.deliver_at,
        "expires_at": item.expires_at,
        "lease_expires_at": None if shown.lease is None else shown.lease.expires_at,
        "progress": None if shown.lease is None else shown.lease.progress_view,
        "error": item.error,
        "ack_context": context,
        "fairness_key": item.fairness_key or None,
        "ack_topic": None,
    }
    if item.ack_topic is not None:
        foreign = item.ack_namespace != item.namespace
        view["ack_topic"] = f"{item.ack_namespace}:{item.ack_topic}" if foreign else item.ack_topic
    if item.managed and item.ack_context is not None:
        view["dag"] = dag_of(item.ack_context)
    return view


def _place(query: str, cursor: str | None) -> tuple[int, str]:
    """The shard and id that a cursor goes on after."""
    if cursor is None:
        return 0, START[2]
    position = cursors.decode(query, cursor)
    if _PLACE(position) is None:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged")
    return int(position[:3], 16), position[3:]


# -- topics, namespaces, shards -----------------------------------------------------------------------------


@router.put("/v1/namespaces/{ns}", response_model=wire.Namespace, tags=["namespaces"])
async def put_namespace(
    ns: str,
    caller: CallerOf,
    process: SteeredOf,
    body: Annotated[wire.NamespaceSpec, body_of(wire.NamespaceSpec)],
) -> Response:
    """Declare a namespace and set its quotas."""
    enter(ns, caller, "admin")
    return json_response(await process.topics.set_namespace(ns, Quota(**body.model_dump())))


@router.get("/v1/namespaces", response_model=wire.SpreadPage[wire.Namespace], tags=["namespaces"])
async def list_namespaces(
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Namespaces with quota and use."""
    caller.need("ops")
    after = name_in("namespaces", cursor)
    found, rest, away = await process.topics.namespaces(limit, after, caller.namespaces)
    next_cursor = None if rest is None else cursors.encode("namespaces", rest)
    return json_response(cursors.page(found, next_cursor, away))


@router.get("/v1/namespaces/{ns}", response_model=wire.Namespace, tags=["namespaces"])
async def get_namespace(ns: str, caller: CallerOf, process: ProcessOf) -> Response:
    """One namespace with quota and use."""
    enter(ns, caller, "consume", "ops")
    return json_response(await process.topics.namespace(ns))


@router.get("/v1/namespaces/{ns}/topics", response_model=wire.SpreadPage[wire.TopicStats], tags=["topics"])
async def list_topics(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    topic: TopicQuery = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Active topics with their counts, by name; or one `topic`, if it is active.

    A page looks at a bounded number of topics, so it may hold fewer than `limit`, or none, and have a next.
    """
    enter(ns, caller, "consume", "ops")
    if topic is not None:
        alone, _, away = await process.topics.active_one(ns, topic)
        return json_response(cursors.page(alone, None, away))
    query = f"topics|{ns}"
    after = name_in(query, cursor)
    found, rest, away = await process.topics.active(ns, limit, after)
    next_cursor = None if rest is None else cursors.encode(query, rest)
    return json_response(cursors.page(found, next_cursor, away))


def name_in(query: str, cursor: str | None) -> str:
    """The name behind which a page begins."""
    after = "" if cursor is None else cursors.decode(query, cursor)
    if "\0" in after:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged")
    return after


def _topic_verb(name: str, scope: str, summary: str) -> None:
    steers = name in ("pause", "resume")

    async def handle(
        ns: str,
        caller: CallerOf,
        process: ProcessOf,
        body: Annotated[wire.TopicRequest, body_of(wire.TopicRequest)],
    ) -> Response:
        enter(ns, caller, scope)
        if body.topic.startswith("_") and not caller.is_dag_service:
            raise Forbidden("topics that begin with `_` are the system's")
        topics = process.topics
        if steers:
            return json_response(await topics.pause(ns, body.topic, name == "pause"))
        act = topics.purge if name == "purge" else topics.redrive
        return json_response(await act(ns, body.topic))

    handle.__doc__ = summary
    if steers:
        handle.__annotations__["process"] = SteeredOf
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


@router.post("/v1/namespaces/{ns}/topics/configure", response_model=wire.TopicSettingsView, tags=["topics"])
async def configure_topic(
    ns: str,
    caller: CallerOf,
    process: SteeredOf,
    body: Annotated[wire.TopicSettings, body_of(wire.TopicSettings)],
) -> Response:
    """Give a topic its settings: minimum shares for worse priorities. What is left out is taken away.

    In force within about a second; a dequeue that waits keeps what it began with.
    """
    enter(ns, caller, "admin")
    if body.topic.startswith("_") and not caller.is_dag_service:
        raise Forbidden("topics that begin with `_` are the system's")
    shares = tuple((entry.priority, entry.share) for entry in body.min_share)
    await process.topics.configure(ns, body.topic, shares)
    return json_response(body.model_dump())


@router.put("/v1/namespaces/{ns}/topics/limits", response_model=wire.TopicLimitsView, tags=["topics"])
async def limit_topic(
    ns: str,
    caller: CallerOf,
    process: SteeredOf,
    body: Annotated[wire.TopicLimits, body_of(wire.TopicLimits)],
) -> Response:
    """Limit what a topic hands out: `rate` items a second, `burst` of them at once (by default as many as a second
    has), `concurrency` of them leased at a time; `key_rate`, `key_burst` and `key_concurrency` are the same for
    the items of each `fairness_key`. What is left out is taken away.

    Exact over all processes from when each has heard of it, within about a second.
    """
    enter(ns, caller, "admin")
    if body.topic.startswith("_"):
        raise Forbidden("topics that begin with `_` are the system's")
    burst, key_burst = (
        given or max(1, math.ceil(rate or 0))
        for given, rate in ((body.burst, body.rate), (body.key_burst, body.key_rate))
    )
    limits = TopicLimits(body.rate, burst, body.concurrency, body.key_rate, key_burst, body.key_concurrency)
    return json_response(await process.topics.limit(ns, body.topic, limits))


@router.get("/v1/namespaces/{ns}/topics/limits", response_model=wire.Page[wire.TopicLimitsView], tags=["topics"])
async def list_topic_limits(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
    topic: TopicQuery = None,
) -> Response:
    """The topics that have limits or are throttled, by name, with what is leased of them; or `topic` alone."""
    enter(ns, caller, "consume", "ops")
    if topic is not None:
        return json_response({"items": await process.topics.limits_of(ns, topic), "next_cursor": None})
    query = f"limits|{ns}"
    found, rest = await process.topics.limits(ns, limit, name_in(query, cursor))
    next_cursor = None if rest is None else cursors.encode(query, rest)
    return json_response({"items": found, "next_cursor": next_cursor})


@router.post("/v1/namespaces/{ns}/topics/unthrottle", response_model=wire.TopicLimitsView, tags=["topics"])
async def unthrottle_topic(
    ns: str,
    caller: CallerOf,
    process: SteeredOf,
    body: Annotated[wire.Unthrottle, body_of(wire.Unthrottle)],
) -> Response:
    """End what `throttle_s` of nacks has begun: for a topic and all its keys, or for one key.

    At once at this process, at the others within about a second.
    """
    enter(ns, caller, "admin")
    return json_response(await process.topics.unthrottle(ns, body.topic, body.key))


@router.get("/v1/shards", response_model=wire.Page[wire.ShardHealth], tags=["shards"])
async def list_shards(
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Health of all shards, as this process sees them."""
    caller.need("ops")
    return json_response(cursors.cut("shards", await process.health.shards(), "shard", limit, cursor))


@router.get("/v1/shards/{shard}", response_model=wire.ShardHealth, tags=["shards"])
async def get_shard(shard: str, caller: CallerOf, process: ProcessOf) -> Response:
    """Health of one shard."""
    caller.need("ops")
    if not shard.isdecimal() or not shard.isascii() or len(shard) > 4:
        raise NotFound("no shard has this number; see GET /v1/shards")
    return json_response(await process.health.shard(ShardNo(int(shard))))


def _raw(text: str | None) -> msgspec.Raw:
    """Stored JSON text as a part of an answer."""
    return NULL if text is None else msgspec.Raw(text.encode())
