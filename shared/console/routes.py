"""`GET /v1/history`, the same for both services."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from headgate import wire
from shared.admission.connection_priority import Urgency
from shared.console.audit_log import AuditPlace
from shared.console.longer import LONGEST_S
from shared.console.merging import METRICS
from shared.console.watch import Watch
from shared.errors import Forbidden, invalid
from shared.http import cursors
from shared.http.access import Caller
from shared.http.edge import body_of, caller_of, json_response
from shared.ids import ShardNo

router = APIRouter()

_SPAN_S = 3_600.0
_END = datetime(9999, 1, 1, tzinfo=UTC)


async def watch_of(request: Request) -> Watch:
    """A dependency: what this process shows operators."""
    watch: Watch = request.app.state.watch
    request.app.state.lag.let_in(Urgency.LIST)
    return watch


@router.get("/v1/history", response_model=wire.History, operation_id="history", tags=["console"])
async def history(
    caller: Annotated[Caller, Depends(caller_of)],
    watch: Annotated[Watch, Depends(watch_of)],
    metrics: Annotated[str, Query(max_length=1_000, description="names, with commas between them")],
    by: Annotated[Literal["shard", "topic", "all"], Query(description="what has a line of its own")] = "all",
    shard: Annotated[ShardNo | None, Query(ge=0, le=4_095)] = None,
    namespace: Annotated[str | None, Query(pattern=wire.NAMESPACE_PATTERN)] = None,
    topic: Annotated[str | None, Query(pattern=wire.TOPIC_PATTERN)] = None,
    span_s: Annotated[float, Query(gt=0, le=LONGEST_S)] = _SPAN_S,
    step_s: Annotated[float, Query(gt=0, le=86_400)] = 15.0,
) -> Response:
    """The last hour, as the processes of the service remember it (scope `ops`): points of each metric, of all
    shards together, of each, or of each of the topics that hold most; and what happened meanwhile. A longer
    range comes from Prometheus, where the service knows one (`source`)."""
    caller.need("ops")
    wanted = list(dict.fromkeys(metrics.split(",")))
    for name in wanted:
        if name not in METRICS:
            raise invalid("/metrics", f"there is no metric {name[:40]!r}; there are {', '.join(sorted(METRICS))}")
    if namespace is not None and not caller.may_enter(namespace):
        caller.enter(namespace)
    if namespace is not None and by != "topic" and topic is None:
        raise invalid("/namespace", "a namespace has lines of its topics alone: ask `by=topic`, or name a `topic`")
    question = watch.question(
        metrics=wanted, span_s=span_s, step_s=step_s, by=by, shard=shard, namespace=namespace, topic=topic
    )
    is_longer = watch.longer.url is not None and span_s > watch.remembered_s
    found = await (watch.ask_longer(question) if is_longer else watch.ask(question))
    found["series"] = [line for line in found["series"] if _may_see(caller, line)]
    return json_response(found)


@router.get("/v1/audit", response_model=wire.console.AuditPage, operation_id="audit_entries", tags=["console"])
async def audit(
    caller: Annotated[Caller, Depends(caller_of)],
    watch: Annotated[Watch, Depends(watch_of)],
    namespace: Annotated[str | None, Query(pattern=wire.NAMESPACE_PATTERN)] = None,
    limit: Annotated[int, Query(ge=1, le=wire.PAGE_LIMIT_MAX)] = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """What operators did, newest first (scope `ops`): who, what, when, to how many, and from where.

    A token of some namespaces names one of them.
    """
    caller.need("ops")
    if namespace is None and caller.namespaces is not None:
        raise invalid("/namespace", "name one of the token's namespaces")
    if namespace is not None:
        caller.enter(namespace)
    query = f"audit|{namespace}"
    found, has_more, away = await watch.audit_log.page(namespace, limit, _audit_place(query, cursor))
    items = []
    for _, entry in found:
        shown = entry._asdict()
        del shown["entry_id"], shown["call"]
        if not shown.pop("ended"):
            shown["verb"] += " (outcome unknown)"
        items.append(shown)
    more = None
    if has_more:
        shard, last = found[-1]
        more = cursors.encode(query, f"{last.at.isoformat()}|{shard}|{last.entry_id}")
    return json_response({"items": items, "next_cursor": more, "away": away})


def _audit_place(query: str, cursor: str | None) -> AuditPlace:
    if cursor is None:
        return AuditPlace(_END, ShardNo(0), 0)
    try:
        at, shard, entry_id = cursors.decode(query, cursor).split("|")
        place = AuditPlace(datetime.fromisoformat(at), ShardNo(int(shard)), int(entry_id))
        if place.at.tzinfo is None or not 0 <= place.entry_id < 2**63:
            raise ValueError(cursor)
    except ValueError:
        raise invalid("/cursor", "pass next_cursor of the page before, unchanged") from None
    return place


@router.get(
    "/v1/shards/{shard}/inspection", response_model=wire.Inspection, operation_id="inspect_shard", tags=["console"]
)
async def inspect_shard(
    shard: str, caller: Annotated[Caller, Depends(caller_of)], watch: Annotated[Watch, Depends(watch_of)]
) -> Response:
    """A close look at a shard (scope `ops`): its server's sessions, locks, tables, statements and standbys, and
    how each process of the service sees it."""
    _see_fleet(caller, "ops")
    return json_response(await watch.inspect(watch.number_of(shard)))


@router.get(
    "/v1/shard-commands",
    response_model=wire.console.ShardCommands,
    operation_id="shard_commands",
    tags=["console"],
)
async def shard_commands(
    caller: Annotated[Caller, Depends(caller_of)], watch: Annotated[Watch, Depends(watch_of)]
) -> Response:
    """The last changes of the shard map that were begun by a call (scope `ops`, a token of all namespaces)."""
    _see_fleet(caller, "ops")
    return json_response({"enabled": watch.map_commands.enabled, "items": await watch.commands()})


@router.post(
    "/v1/shards/{shard}/commands",
    status_code=202,
    response_model=wire.console.ShardCommand,
    responses={200: {"model": wire.console.ShardCommand, "description": "What it would do (`dry_run`)"}},
    operation_id="command_shard",
    tags=["console"],
)
async def command_shard(
    shard: str,
    request: Request,
    caller: Annotated[Caller, Depends(caller_of)],
    watch: Annotated[Watch, Depends(watch_of)],
    body: Annotated[wire.console.ShardCommandSpec, body_of(wire.console.ShardCommandSpec)],
) -> Response:
    """Drain a shard, use it again, even out the slots, or move it to another's server; or say what that does.

    Scope `admin`, a token of all namespaces.
    """
    _see_fleet(caller, "admin")
    number = watch.number_of(shard)
    if (body.kind == "move") != (body.to is not None):
        raise invalid("/to", "a move names a shard whose server it is to; other commands do not")
    if body.dry_run:
        planned = await watch.map_commands.plan(body.kind, number, body.to)
        return json_response(asdict(planned) | {"process": watch.peers.name})
    begun = watch.map_commands.begin(body.kind, number, body.to, request.scope.get("audited"))
    return json_response(asdict(begun) | {"process": watch.peers.name}, 202)


def _see_fleet(caller: Caller, scope: str) -> None:
    caller.need(scope)
    if caller.namespaces is not None:
        raise Forbidden("a shard is every tenant's: this needs a token of all namespaces")


def _may_see(caller: Caller, line: dict[str, Any]) -> bool:
    return line["namespace"] is None or caller.may_enter(line["namespace"])
