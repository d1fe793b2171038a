"""The HTTP shape of explanations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from headgate import wire
from services.dag.api.routing import DAG_PATH, Key, Limit, NamespaceOf, OrchestratorOf, clean
from services.dag.api.views import dag_view
from services.dag.read.explain import Frontier, FrontierNode, Timeline
from services.dag.read.externals import OpenExternal
from services.dag.read.reasons import DagReasons
from shared.http import cursors
from shared.http.edge import json_response

router = APIRouter()

OptionalKey = Annotated[str | None, Query(min_length=1, max_length=wire.KEY_BYTES_MAX)]


@router.get(DAG_PATH + "/frontier", response_model=wire.Frontier, operation_id="dag_frontier", tags=["dags"])
async def get_frontier(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """What the DAG waits for now and since when, a page of nodes at a time; and the longest chain left."""
    return json_response(frontier_view(await duties.explainer.frontier(ns, dag, limit=limit, cursor=cursor)))


@router.get(DAG_PATH + "/timeline", response_model=wire.Timeline, operation_id="dag_timeline", tags=["nodes"])
async def get_timeline(ns: NamespaceOf, dag: str, key: Key, duties: OrchestratorOf) -> Response:
    """One node's life: created, released, each attempt, ended."""
    return json_response(timeline_view(await duties.explainer.timeline(ns, dag, clean("key", key) or "")))


@router.get(
    "/v1/namespaces/{ns}/externals",
    response_model=wire.SpreadPage[wire.dag.OpenExternal],
    operation_id="open_externals",
    tags=["dags"],
)
async def get_open_externals(
    ns: NamespaceOf,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """What DAGs wait for that somebody has to resolve, those that run longest first: of each DAG one node."""
    found, more, away = await duties.externals.open(ns, limit=limit, cursor=cursor)
    return json_response(cursors.page([_external_view(each) for each in found], more, away))


@router.get(
    DAG_PATH + "/timelines",
    response_model=wire.Page[wire.Timeline],
    operation_id="dag_timelines",
    tags=["nodes"],
)
async def get_timelines(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """The lives of a page of nodes, in the order of their making; of each error the end."""
    found, more = await duties.explainer.timelines(ns, dag, limit=limit, cursor=cursor)
    return json_response({"items": [timeline_view(each) for each in found], "next_cursor": more})


@router.get(DAG_PATH + "/why", response_model=wire.Why, operation_id="dag_why", tags=["dags"])
async def get_why(ns: NamespaceOf, dag: str, duties: OrchestratorOf, key: OptionalKey = None) -> Response:
    """Why a DAG, or one node of it, has not ended: a sentence, and the chain of causes down to its root."""
    reasons = DagReasons(duties.queries, duties.explainer)
    if key is None:
        return json_response(await reasons.of_dag(ns, dag))
    return json_response(await reasons.of_node(ns, dag, clean("key", key) or ""))


def frontier_view(frontier: Frontier) -> dict[str, Any]:
    """A page of a frontier as callers see it."""
    dag = dag_view(frontier.dag)
    return {
        "id": dag["id"],
        "state": dag["state"],
        "nodes": dag["nodes"],
        "waits_for": frontier.waits_for,
        "undeclared": dag["undeclared"],
        "longest_chain": frontier.chain,
        "items": [_node_view(node) for node in frontier.nodes],
        "next_cursor": frontier.next_cursor,
    }


def _external_view(found: OpenExternal) -> dict[str, Any]:
    row = found.row
    return {
        "dag": row.dag_id,
        "dag_name": row.dag_name,
        "dag_key": row.dag_key,
        "node": row.key,
        "external": row.external,
        "more": max(0, row.ext_left - 1),
        "since": found.since,
        "blocked": row.blocked,
    }


def _node_view(node: FrontierNode) -> dict[str, Any]:
    item = node.item
    return {
        "key": node.row.key,
        "state": node.row.state,
        "topic": node.row.topic or None,
        "dag": node.row.item_id if node.row.sub else None,
        "generation": node.row.generation,
        "item_id": node.row.item_id,
        "standing": node.standing,
        "since": node.since,
        "waits_for": node.waits_for,
        "attempt": None if item is None else item.attempt,
        "deliver_at": None if item is None else item.deliver_at,
        "lease_expires_at": None if item is None else item.lease_expires_at,
        "error": None if item is None else item.error,
        "worker": None if item is None else item.worker,
        "unasked_s": None if item is None else item.unasked_s,
    }


def timeline_view(timeline: Timeline) -> dict[str, Any]:
    """A node's life as callers see it."""
    row, item = timeline.row, timeline.item
    return {
        "key": row.key,
        "state": row.state,
        "topic": row.topic or None,
        "item_id": row.item_id,
        "generation": row.generation,
        "created_at": row.created_at,
        "generation_at": timeline.begun_at,
        "released_at": row.released_at,
        "attempts": timeline.attempts,
        "deliver_at": None if item is None else item.deliver_at,
        "lease_expires_at": None if item is None else item.lease_expires_at,
        "ended_at": row.finished_at,
        "error": row.error,
    }
