"""The HTTP shape of DAGs within DAGs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from headgate import wire
from services.dag.api import intake, verbs
from services.dag.api.routing import DAG_PATH, Limit, NamespaceOf, OrchestratorOf
from services.dag.api.views import added_view, raw
from services.dag.build.expand import Expansion
from shared.http.edge import body_of, json_response

router = APIRouter()


@router.post(
    DAG_PATH + "/expand",
    status_code=201,
    response_model=wire.NodesAdded,
    operation_id="dag_expand",
    tags=["dags"],
)
async def expand(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.ExpandNode, body_of(wire.ExpandNode)],
) -> Response:
    """Add children to a node that runs; what waits for the node, then or later, waits for them too."""
    nodes = await verbs.new_nodes(duties, body.nodes)
    edges = intake.new_edges(body.dependencies or ())
    added = await duties.builder.add(ns, dag, nodes, edges, Expansion(body.node, body.generation))
    return json_response({"nodes": added_view(added)}, 201)


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
