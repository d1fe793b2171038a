"""The HTTP shape of values that the jobs of a DAG share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response

from headgate import wire
from services.dag.api import intake
from services.dag.api.routing import DAG_PATH, Limit, NamespaceOf, OrchestratorOf, path_name
from services.dag.api.views import raw
from services.dag.store.shared_values import Value
from shared.http.edge import body_of, json_response

router = APIRouter()


@router.put(
    DAG_PATH + "/values/{key}", response_model=wire.ValueWritten, operation_id="dag_value_put", tags=["values"]
)
async def put_value(
    ns: NamespaceOf,
    dag: str,
    key: str,
    duties: OrchestratorOf,
    body: Annotated[wire.PutValue, body_of(wire.PutValue)],
) -> Response:
    """Write a value of the DAG. With `version` only where it still has that one (0: where there is none), else 409
    `version_conflict`; the answer's `version` is one more. Send a call again with the same `write_id`, and it is
    applied once; another value under it is refused, `key_reused`."""
    written = await duties.values.put(
        ns,
        dag,
        path_name("key", key),
        intake.value(body, duties.context.settings),
        version=body.version,
        write_id=body.write_id,
    )
    return json_response({"key": key, "version": written.version, "updated_at": written.updated_at})


@router.get(DAG_PATH + "/values/{key}", response_model=wire.DagValue, operation_id="dag_value", tags=["values"])
async def get_value(ns: NamespaceOf, dag: str, key: str, duties: OrchestratorOf) -> Response:
    """A value of the DAG, and its version."""
    return json_response(_view(await duties.values.get(ns, dag, path_name("key", key))))


@router.get(
    DAG_PATH + "/values", response_model=wire.Page[wire.DagValue], operation_id="dag_values", tags=["values"]
)
async def list_values(
    ns: NamespaceOf,
    dag: str,
    duties: OrchestratorOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """A page of the DAG's values, in the order of their keys; it may hold fewer than `limit` and still have a
    next."""
    found, more = await duties.values.page(ns, dag, limit=limit, cursor=cursor)
    return json_response({"items": [_view(value) for value in found], "next_cursor": more})


def _view(value: Value) -> dict[str, Any]:
    return {**value._asdict(), "value": raw(value.value)}
