"""The HTTP shape of the DAG service. Each handler reads, calls one duty, and answers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from headgate import wire
from services.dag.api import intake, verbs
from services.dag.api.routing import DAG_PATH, DAGS_PATH, CallerOf, Key, Limit, NamespaceOf, OrchestratorOf, clean
from services.dag.api.views import dag_view, node_view
from services.dag.model import Dag
from services.dag.read import drawing
from services.dag.settings import DagSettings
from shared.http import cursors
from shared.http.edge import body_of, json_response

router = APIRouter()

NodeQuery = Annotated[str | None, Query(min_length=1, max_length=wire.KEY_BYTES_MAX)]
Format = Literal["json", "mermaid", "dot"]


# -- building -------------------------------------------------------------------------------------------------


@router.post(
    DAGS_PATH,
    status_code=201,
    response_model=wire.CreatedDag,
    responses={200: {"model": wire.CreatedDag, "description": "The first DAG of this `key`"}},
    operation_id="dag_create",
    tags=["dags"],
)
async def create(
    ns: NamespaceOf, duties: OrchestratorOf, body: Annotated[wire.DagSpec, body_of(wire.DagSpec)]
) -> Response:
    """Create a DAG. The same `key` again answers the first one, with 200 and `existing`, whatever else the body
    says; `same` says whether that one was made of what the body asks for."""
    status, made = await verbs.create(duties, ns, body)
    return json_response(made, status)


@router.post(
    DAG_PATH + "/nodes",
    status_code=201,
    response_model=wire.NodesAdded,
    operation_id="dag_add_nodes",
    tags=["dags"],
)
async def add_nodes(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.AddNodes, body_of(wire.AddNodes)],
) -> Response:
    """Add nodes and edges, all or nothing. What exists already is recognised."""
    return json_response(await verbs.add_nodes(duties, ns, dag, body), 201)


@router.post(
    DAG_PATH + "/dependencies",
    status_code=201,
    response_model=wire.DependenciesAdded,
    operation_id="dag_add_dependencies",
    tags=["dags"],
)
async def add_dependencies(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.AddDependencies, body_of(wire.AddDependencies)],
) -> Response:
    """Add edges between nodes, all or nothing. An edge that exists is a no-op."""
    return json_response(await verbs.add_dependencies(duties, ns, dag, body), 201)


@router.post(DAG_PATH + "/resolve", response_model=wire.Resolutions, operation_id="dag_resolve", tags=["dags"])
async def resolve(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.ResolveRequest, body_of(wire.ResolveRequest)],
) -> Response:
    """Say that externals have happened; also before they, or their nodes, are declared."""
    return json_response(await verbs.resolve(duties, ns, dag, body))


# -- control --------------------------------------------------------------------------------------------------


def _verb(name: str, summary: str) -> None:
    async def handle(
        ns: NamespaceOf,
        dag: str,
        duties: OrchestratorOf,
        _body: Annotated[wire.Empty, body_of(wire.Empty)],
    ) -> Response:
        return json_response(dag_view(await duties.queries.whole(await getattr(duties.controller, name)(ns, dag))))

    router.post(
        f"{DAG_PATH}/{name}",
        response_model=wire.Dag,
        operation_id=f"dag_{name}",
        description=summary,
        tags=["control"],
    )(handle)


_verb("release", "Lift `hold`: what is ready is released.")
_verb("close", "End `open`: the DAG may end.")
_verb("pause", "Release nothing more until resumed.")
_verb("resume", "Release again.")


@router.post(
    DAG_PATH + "/cancel",
    status_code=202,
    response_model=wire.Dag,
    responses={200: {"model": wire.Dag, "description": "It is final"}},
    operation_id="dag_cancel",
    tags=["control"],
)
async def cancel(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.CancelDag, body_of(wire.CancelDag)],
) -> Response:
    """Cancel every unfinished node: 202 while `cancelling`, 200 once it is final."""
    found = await duties.controller.cancel(ns, dag, body.reason)
    return json_response(dag_view(await duties.queries.whole(found)), 200 if found.over else 202)


@router.post(
    DAG_PATH + "/nodes/cancel",
    response_model=wire.NodesCancelled,
    responses={202: {"model": wire.NodesCancelled, "description": "The queue has not confirmed all of them yet"}},
    operation_id="dag_cancel_nodes",
    tags=["control"],
)
async def cancel_nodes(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.CancelNodes, body_of(wire.CancelNodes)],
) -> Response:
    """Cancel nodes: 202 while one is `cancelling`, 200 once all have ended. Others go on by their triggers."""
    found = await duties.controller.cancel_nodes(ns, dag, body.nodes, body.reason)
    pending = any(status == "cancelling" for _, status in found)
    results = [{"key": key, "status": status} for key, status in found]
    return json_response({"results": results}, 202 if pending else 200)


@router.post(DAG_PATH + "/retry", response_model=wire.Dag, operation_id="dag_retry", tags=["control"])
async def retry(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.RetryDag, body_of(wire.RetryDag)],
) -> Response:
    """A new generation of failed nodes (those named, or all), and of what was skipped or cancelled with them; of
    the nodes `from` some down, whatever they have come to; or, with `all`, of every node."""
    wanted = intake.retry(body, duties.context.settings)
    found = await duties.retrier.retry(ns, dag, wanted)
    return json_response(dag_view(await duties.queries.whole(found)))


@router.post(DAG_PATH + "/skip", response_model=wire.Dag, operation_id="dag_skip", tags=["control"])
async def skip(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    body: Annotated[wire.SkipNodes, body_of(wire.SkipNodes)],
) -> Response:
    """Take blocked nodes as skipped."""
    found = await duties.controller.skip(ns, dag, body.nodes)
    return json_response(dag_view(await duties.queries.whole(found)))


# -- queries --------------------------------------------------------------------------------------------------


@router.get(DAGS_PATH, response_model=wire.SpreadPage[wire.Dag], operation_id="dags", tags=["dags"])
async def list_dags(
    ns: NamespaceOf,
    duties: OrchestratorOf,
    state: wire.DagState | None = None,
    name: str | None = None,
    key: str | None = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of DAGs, newest first; with a `key` the one of that key, or none."""
    found, more, away = await duties.queries.dags(
        ns, state=state, name=clean("name", name), key=clean("key", key), limit=limit, cursor=cursor
    )
    return json_response(cursors.page([dag_view(dag) for dag in found], more, away))


@router.get(DAG_PATH, response_model=wire.Dag, operation_id="dag", tags=["dags"])
async def get_dag(ns: NamespaceOf, dag: str, duties: OrchestratorOf) -> Response:
    """A DAG."""
    return json_response(dag_view(await duties.queries.dag(ns, dag)))


@router.get(DAG_PATH + "/wait", response_model=wire.WaitedDag, operation_id="dag_wait", tags=["dags"])
async def wait(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    timeout_s: Annotated[float, Query(ge=0, le=wire.WAIT_S_MAX)] = wire.WAIT_S_MAX,
    node: NodeQuery = None,
) -> Response:
    """A DAG, when it has ended or at the timeout; with `node`, how the node of this key stands then."""
    return json_response(await verbs.wait(duties, ns, dag, timeout_s, clean("node", node)))


@router.get(DAG_PATH + "/nodes", response_model=wire.Page[wire.NodeView], operation_id="dag_nodes", tags=["nodes"])
async def list_nodes(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    state: wire.NodeState | None = None,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of nodes; it may hold fewer than `limit` and still have a next."""
    found, more = await duties.queries.nodes(ns, dag, state=state, limit=limit, cursor=cursor)
    return json_response({"items": [node_view(detail) for detail in found], "next_cursor": more})


@router.get(DAG_PATH + "/node", response_model=wire.NodeView, operation_id="dag_node", tags=["nodes"])
async def get_node(ns: NamespaceOf, dag: str, key: Key, duties: OrchestratorOf) -> Response:
    """One node, with what it waits for."""
    return json_response(node_view(await duties.queries.node(ns, dag, clean("key", key) or "")))


@router.get(DAG_PATH + "/node/inputs", operation_id="dag_node_inputs", tags=["nodes"])
async def get_inputs(ns: NamespaceOf, dag: str, key: Key, duties: OrchestratorOf) -> Response:
    """What a node with `pass_outputs` is given, of any size: `{upstream key: output, external:name: data}`."""
    text = await duties.queries.inputs(ns, dag, clean("key", key) or "")
    return Response(text, media_type="application/json")


@router.get(DAG_PATH + "/node/output", operation_id="dag_node_output", tags=["nodes"])
async def get_output(ns: NamespaceOf, dag: str, key: Key, duties: OrchestratorOf) -> Response:
    """A node's output as its consumer acked it; 404 while it has given none."""
    text = await duties.queries.output(ns, dag, clean("key", key) or "")
    return Response(text, media_type="application/json")


@router.get(
    DAG_PATH + "/graph",
    response_model=wire.GraphView,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    operation_id="dag_graph",
    tags=["dags"],
)
async def graph(ns: NamespaceOf, dag: str, duties: OrchestratorOf, format: Format = "json") -> Response:
    """Nodes, edges and states, as JSON or as text for Mermaid or Graphviz."""
    settings: DagSettings = duties.context.settings
    nodes_max = settings.graph_json_nodes_max if format == "json" else settings.graph_text_nodes_max

    def form_of(dag: Dag) -> drawing.Form:
        if format == "json":
            return drawing.Json(dag.id, dag.name, dag.state)
        return drawing.Mermaid() if format == "mermaid" else drawing.Dot(dag.name or dag.id)

    written = await duties.queries.graph(ns, dag, nodes_max, form_of)
    return Response(written, media_type="application/json" if format == "json" else "text/plain; charset=utf-8")


@router.get(
    "/v1/shards", response_model=wire.Page[wire.DagShardHealth], operation_id="dag_shards", tags=["shards"]
)
async def shards(
    caller: CallerOf,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """Health of the DAG shards, as this process sees them (scope `ops`)."""
    caller.need("ops")
    return json_response(cursors.cut("shards", await duties.shard_health.shards(), "shard", limit, cursor))
