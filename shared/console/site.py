"""What makes the pages of both services one site: the way to the other service, and what the reader may do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from headgate import wire
from shared.console.relay import ServiceRelay
from shared.http.access import Caller
from shared.http.edge import caller_of, json_response, read_body

router = APIRouter()

_METHODS = ["GET", "POST", "PUT", "DELETE"]


@router.get("/v1/me", response_model=wire.Me, operation_id="me", tags=["console"])
async def me(request: Request, caller: Annotated[Caller, Depends(caller_of)]) -> Response:
    """What the caller's token allows, and how long a range of history there is."""
    namespaces = None if caller.namespaces is None else sorted(caller.namespaces)
    known = {"token": caller.token_id, "scopes": sorted(caller.scopes), "namespaces": namespaces}
    return json_response(known | {"history_s_max": request.app.state.watch.told_s_max})


def add_relay(app: FastAPI, relay: ServiceRelay) -> None:
    """Pass on to the other service what its pages ask it for, under `/ui/{service}`."""

    async def pass_on(request: Request, path: str) -> Response:
        await caller_of(
            request
        )  # the other service may ask for no token, where only this one is reached from outside
        raw = request.scope.get("raw_path") or path.encode()
        prefix = f"/ui/{relay.service}"
        target = raw.decode("latin-1").partition(prefix)[2].partition("?")[0]
        body = await read_body(request, app.state.settings) if request.method != "GET" else b""
        client = request.client.host if request.client is not None else ""
        answer = await relay.ask(request.method, target, request.url.query, dict(request.headers), body, client)
        return StreamingResponse(answer.body(), status_code=answer.status, headers=answer.headers)

    app.api_route(f"/ui/{relay.service}/{{path:path}}", methods=_METHODS, include_in_schema=False)(pass_on)
