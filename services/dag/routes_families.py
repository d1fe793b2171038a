"""The HTTP shape of DAGs within DAGs."""

from __future__ import annotations

from fastapi import APIRouter, Response

from headgate import wire
from services.dag.routes import raw
from services.dag.routing import DAG_PATH, Limit, NamespaceOf, OrchestratorOf
from shared.http import json_response

router = APIRouter()


@router.get(
    DAG_PATH + "/outputs", response_model=wire.Page[wire.NodeOutput], operation_id="dag_outputs", tags=["nodes"]
)
async def outputs(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Outputs of the nodes that nothing waits for, in the order of their making. A page may be short and
    still have a next."""
    found, more = await duties.queries.outputs(ns, dag, limit=limit, cursor=cursor)
    items = [{"key": key, "output": raw(output)} for key, output in found]
    return json_response({"items": items, "next_cursor": more})
