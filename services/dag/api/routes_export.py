"""The HTTP shape of exports: ended DAGs in the order of their ends, whole nodes, and how far that has come."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Response

from headgate import wire
from services.dag.api.routing import Limit, NamespaceOf, OrchestratorOf
from services.dag.api.views import dag_view, node_view
from shared.errors import invalid
from shared.http.edge import body_of, json_response

router = APIRouter()

_NS = "/v1/namespaces/{ns}"


@router.get(
    _NS + "/exports/dags", response_model=wire.Page[wire.Dag], operation_id="export_dags", tags=["exports"]
)
async def ended_dags(
    ns: NamespaceOf,
    duties: OrchestratorOf,
    since: str | None = None,
    until: str | None = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of DAGs that ended from `since` on and before `until`, oldest end first.

    The ends of the last minutes are left out: an earlier one may still be on its way.
    """
    found, more = await duties.exporter.ended(
        ns, since=_moment("since", since), until=_moment("until", until), limit=limit, cursor=cursor
    )
    return json_response({"items": [dag_view(dag) for dag in found], "next_cursor": more})


@router.get(
    _NS + "/dags/{dag}/export",
    response_model=wire.Page[wire.NodeExport],
    operation_id="dag_export",
    tags=["exports"],
)
async def export_dag(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of nodes, each with what its item is made of."""
    found, more = await duties.exporter.nodes(ns, dag, limit=limit, cursor=cursor)
    views = [{**node_view(detail), "item": msgspec.Raw(item.encode())} for detail, item in found]
    return json_response({"items": views, "next_cursor": more})


@router.get(_NS + "/exports/mark", response_model=wire.ExportMarked, operation_id="export_mark", tags=["exports"])
async def get_mark(ns: NamespaceOf, duties: OrchestratorOf) -> Response:
    """Up to which end the namespace is exported; null: never."""
    return json_response({"until": await duties.exporter.mark(ns, None)})


@router.put(
    _NS + "/exports/mark", response_model=wire.ExportMarked, operation_id="set_export_mark", tags=["exports"]
)
async def set_mark(
    ns: NamespaceOf, duties: OrchestratorOf, body: Annotated[wire.ExportMark, body_of(wire.ExportMark)]
) -> Response:
    """Say that all that ended before `until` is exported; the mark only moves forward."""
    return json_response({"until": await duties.exporter.mark(ns, body.until)})


def _moment(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    with suppress(ValueError, OverflowError):  # it overflows where its year in UTC is none
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    raise invalid(f"/{name}", "must be a time with a zone, like 2030-01-31T00:00:00Z")
