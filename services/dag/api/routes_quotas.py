"""The HTTP shape of quotas: what a namespace may have of unfinished DAGs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from headgate import wire
from services.dag.api.routing import CallerOf, NamespaceOf, OrchestratorOf, admit
from services.dag.store.reads import Limits
from shared.http.edge import body_of, json_response

router = APIRouter()


@router.put("/v1/namespaces/{ns}", response_model=wire.DagQuota, operation_id="dag_quota_put", tags=["namespaces"])
async def put_quota(
    ns: str,
    caller: CallerOf,
    duties: OrchestratorOf,
    body: Annotated[wire.DagQuotaSpec, body_of(wire.DagQuotaSpec)],
) -> Response:
    """Give a namespace quotas of its own; what is left out is as the service's default (scope `admin`)."""
    admit(ns, caller)
    caller.need("admin")
    limits = Limits(body.dags_max, body.nodes_max, body.edges_max)
    return json_response(await duties.builder.quotas.set(ns, limits))


@router.get("/v1/namespaces/{ns}", response_model=wire.DagQuota, operation_id="dag_quota", tags=["namespaces"])
async def get_quota(ns: NamespaceOf, duties: OrchestratorOf) -> Response:
    """A namespace's quotas, the defaults, and its unfinished DAGs with their nodes and edges."""
    return json_response(await duties.builder.quotas.view(ns))
