"""The HTTP shape of event streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from services.dag.api.routing import DAG_PATH, NamespaceOf, OrchestratorOf, enter
from shared.errors import ServiceError
from shared.http.edge import event_stream

router = APIRouter()

_ID = r"^[0-9]{0,18}$"


@router.get(
    DAG_PATH + "/events",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The DAG has ended, and that was its last event"},
    },
    operation_id="dag_events",
    tags=["dags"],
)
async def events(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    request: Request,
    after: Annotated[str, Query(pattern=_ID)] = "",
    last_event_id: Annotated[str, Header(pattern=_ID)] = "",
) -> Response:
    """State changes of the DAG and its nodes as server-sent events, from the first or the one after
    `Last-Event-ID` (or `after`), until the DAG has ended."""

    def is_welcome() -> bool:
        """Whether the reader's token is still good for this."""
        access, authorization = request.app.state.access, request.headers.get("authorization")
        try:
            enter(ns, access.caller(authorization), reads=True)
        except ServiceError:
            return False
        return True

    stream = await duties.streams.open(ns, dag, int(last_event_id or after or 0), is_welcome)
    return Response(status_code=204) if stream is None else event_stream(stream.frames(), stream.close)
