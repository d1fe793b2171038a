"""The edge of an HTTP service: bodies in, problem+json out, health and metrics beside the routes.

Bodies never go through the framework's own parser: `body_of(Model)` reads them under a size limit, checks
them with `shared.http.json_body`, validates them, and tells the OpenAPI document what they are.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, get_args, get_origin
from urllib.parse import unquote

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate import wire
from headgate.wire import Problem
from shared import vital
from shared.admission.delay import LoopLag
from shared.beside import beside
from shared.errors import (
    BadRequest,
    FieldError,
    Invalid,
    ServiceError,
    TokenInUrl,
    TooLarge,
    UnsupportedMedia,
    pointer_to,
)
from shared.http import json_body
from shared.http.access import Caller
from shared.http.browsers import BrowserGuard
from shared.http.nearest import fields_at, nearest
from shared.http.timing import Timed
from shared.log import log
from shared.metrics import BUILD
from shared.settings import EdgeSettings

M = TypeVar("M", bound=BaseModel)

ERRORS_SHOWN_MAX = 20

_SENTENCE_END = re.compile(r"[.:;](?:\s|$)")

_TOKEN = re.compile(r"hg_[0-9a-f]{6,}_[0-9a-f]{16,}")

_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON answer encoded once, by msgspec: dicts, structs and `msgspec.Raw` parts."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


class _EventStream(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(frames, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def event_stream(frames: AsyncIterator[bytes], close: Callable[[], None]) -> Response:
    """An answer of server-sent events; `close` is called whatever ends it."""
    return _EventStream(frames, close)


async def read_body(request: Request, settings: EdgeSettings) -> bytes:
    """The request's body.

    Raises:
        TooLarge: over `body_bytes_max`, told before the rest is read.
        UnsupportedMedia: a body that is encoded or not JSON.
        BadRequest: its sender has gone, and it is not whole.
    """
    headers = request.headers
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > settings.body_bytes_max:
        raise TooLarge(f"the body has over {settings.body_bytes_max} bytes")
    if headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("send the body without Content-Encoding")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > settings.body_bytes_max:
                raise TooLarge(f"the body has over {settings.body_bytes_max} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise BadRequest("the connection ended before the body did") from None
    if size:
        body = b"".join(parts)
        json_body.check_media(headers.get("content-type", ""), body)
        return body
    return b""


def validate(model: type[M], value: Any) -> M:
    """A decoded body as a wire model.

    Raises:
        Invalid: with a JSON pointer for each fault (at most `ERRORS_SHOWN_MAX`).
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error.errors(include_url=False, include_input=False), model=model) from None


def validate_by_parts(model: type[M], value: Any) -> M:
    """The same, element by element of the lists that the body is made of: a whole list keeps all threads waiting.
    What is refused is looked at as a whole, to tell of every fault."""
    parts = value
    for name, element in _element_models(model).items() if isinstance(value, dict) else ():
        if isinstance(given := value.get(name), list):
            try:
                parts = {**parts, name: [element.model_validate(each) for each in given]}
            except ValidationError:
                return validate(model, value)
    return validate(model, parts)


@cache
def _element_models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """What the elements of its lists are, where they are models, by the lists' names."""
    found = ((name, _element_model(field.annotation)) for name, field in model.model_fields.items())
    return {name: element for name, element in found if element is not None}


def _element_model(annotation: Any) -> type[BaseModel] | None:
    args = get_args(annotation)
    if get_origin(annotation) is list:
        return args[0] if isinstance(args[0], type) and issubclass(args[0], BaseModel) else None
    return next(filter(None, map(_element_model, args)), None)


def invalid_body(faults: Sequence[Any], *, skip: int = 0, model: type[BaseModel] | None = None) -> Invalid:
    """Pydantic's faults as an `Invalid`; `skip` drops leading parts of each location. Input is never echoed.
    Where `model` refused a field, the one is told that it may have meant."""
    faults = faults[:ERRORS_SHOWN_MAX]
    errors = [
        FieldError(error.pointer, error.detail + _meant(fault, model))
        for error, fault in zip(wire.field_errors(faults, skip=skip), faults, strict=True)
    ]
    more = f", and {len(errors) - 1} more" if errors[1:] else ""
    return Invalid(f"{errors[0].pointer or 'the request'}: {errors[0].detail}{more}", errors=errors)


def _meant(fault: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    if model is None or fault["type"] != "extra_forbidden":
        return ""
    *above, name = fault["loc"]
    return nearest(str(name), fields_at(model, above))


async def _only_known_parameters(request: Request) -> None:
    """A dependency of all calls: a query that says what the call does not know, or something twice, is refused.

    Raises:
        Invalid
    """
    given = [name for name, _ in request.query_params.multi_items()]
    route = request.scope.get("route")
    if not given or not isinstance(route, APIRoute) or not route.path.startswith("/v1/"):
        return
    known = _query_names(route.dependant)
    errors = []
    for name in dict.fromkeys(given):
        if name not in known:
            detail = f"there is no such query parameter{nearest(name, known)}"
        elif given.count(name) > 1:
            detail = "it is given more than once"
        else:
            continue
        errors.append(FieldError(pointer_to(name), detail))
    if errors:
        takes = f"; this call takes {', '.join(sorted(known))}" if known else "; this call takes none"
        raise Invalid(f"{errors[0].pointer}: {errors[0].detail}{takes}", errors=errors[:ERRORS_SHOWN_MAX])


def _query_names(dependant: Any) -> set[str]:
    """What a call, or anything that it depends on, reads from the query."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(_query_names, dependant.dependencies))


def body_of(model: type[M]) -> Any:
    """A dependency that reads, checks and validates the body as `model`."""

    async def parse(request: Request) -> M:
        settings = request.app.state.settings
        body = await read_body(request, settings)
        value = await json_body.read(body, depth_max=settings.json_depth_max)
        is_large = len(body) > json_body.BYTES_AT_ONCE_MAX
        return await beside(is_large, validate_by_parts if is_large else validate, model, value)

    parse.body_model = model  # type: ignore[attr-defined]
    return Depends(parse)


async def caller_of(request: Request) -> Caller:
    """A dependency: who calls."""
    caller: Caller = request.app.state.access.caller(request.headers.get("authorization"))
    return caller


def problem(error: ServiceError) -> Response:
    """An error as RFC 9457 problem+json."""
    body: dict[str, Any] = {
        "type": f"urn:headgate:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "outcome": error.outcome,
    }
    if error.errors:
        body["errors"] = [{"pointer": e.pointer, "detail": e.detail} for e in error.errors]
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(body),
        status_code=error.status,
        media_type="application/problem+json",
        headers=headers,
    )


def install(
    app: FastAPI, settings: EdgeSettings, lag: LoopLag, *, ready: Callable[[], Awaitable[dict[str, Any]]]
) -> None:
    """Give an app, before its routes, error handlers, health and metrics, and an OpenAPI that knows the bodies.

    `ready` answers what `/readyz` shows; it raises a ServiceError when the service is not ready.
    """
    app.add_middleware(_Guarded, BrowserGuard(settings))
    app.add_middleware(Timed)
    app.router.dependencies.append(Depends(_only_known_parameters))
    BUILD.labels(_version()).set(1)
    app.state.settings = settings
    app.state.lag = lag
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_crash)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]

    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", tags=["health"])
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["health"])
    async def readyz() -> dict[str, Any]:
        """The process can do its work."""
        vital.PROCESS.check()
        return await ready()

    @app.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


class _Guarded:
    """An ASGI middleware: what the guard refuses is answered here."""

    def __init__(self, app: ASGIApp, guard: BrowserGuard) -> None:
        self.app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                _refuse_tokens(scope["path"], scope["query_string"])
                self._guard.check(scope["method"], scope["path"], scope["headers"])
            except ServiceError as error:
                await problem(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _refuse_tokens(path: str, query: bytes) -> None:
    """Raises TokenInUrl: what stands in an address stays in logs and histories."""
    if _TOKEN.search(path) or (query and _TOKEN.search(unquote(query.decode("latin-1")))):
        raise TokenInUrl(
            "send the token as `Authorization: Bearer hg_...`, and take this one out of force: "
            "addresses are kept in logs and histories"
        )


@cache
def _version() -> str:
    try:
        return version("headgate")
    except PackageNotFoundError:
        return "unknown"  # run from its sources


async def _on_service_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem(error)


async def _on_invalid_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem(invalid_body(error.errors(), skip=1))


class _HttpError(ServiceError):
    """The framework's own refusals (no such route, method not allowed)."""


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)

    unknown = f"the {request.app.title} service has no such call; GET /docs shows those that it has"
    refusal = _HttpError(unknown if error.status_code == 404 else str(error.detail))
    refusal.code = _CODES.get(error.status_code, "bad_request")  # type: ignore[misc]
    refusal.status = error.status_code  # type: ignore[misc]
    refusal.title = str(error.detail)  # type: ignore[misc]
    response = problem(refusal)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(_methods(request)) or response.headers.get("allow", "")
    return response


def _methods(request: Request) -> list[str]:
    """What the path of a request may be asked with: the framework tells of one of its routes only."""
    found = [route for route in _api_routes(request.app.routes) if route.matches(request.scope)[0] != Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


async def _on_crash(request: Request, error: Exception) -> Response:
    log.error("request failed", path=request.url.path, exc_info=error)
    return problem(ServiceError("the service failed on this request; it was logged", outcome="unknown"))


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):  # the framework's own; ours are problems
            schemas.pop(unused, None)
        _add_schema(schemas, Problem)
        # Needed where the service has a tokens file: hence the empty choice. Health is told to anyone.
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}, {}]
        for route in _api_routes(app.routes):
            _describe(document, schemas, route)
        app.openapi_schema = document
    return app.openapi_schema


def _api_routes(routes: Sequence[Any]) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            # Newer versions of the framework keep an included router whole.
            yield from _api_routes(getattr(getattr(route, "original_router", None), "routes", ()))


def _describe(document: dict[str, Any], schemas: dict[str, Any], route: APIRoute) -> None:
    for method in route.methods or ():
        operation = document["paths"].get(route.path, {}).get(method.lower())
        if operation is None:
            continue
        # The framework takes the name of the function, which many routes share.
        operation["summary"] = _SENTENCE_END.split(operation["description"], maxsplit=1)[0].replace("\n", " ")
        operation["responses"].pop("422", None)
        if "health" in operation["tags"]:
            operation["security"] = []
        operation["responses"]["default"] = {
            "description": "A problem (RFC 9457)",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        models = [getattr(part.call, "body_model", None) for part in route.dependant.dependencies]
        models.append(getattr(wire, operation.pop("x-body", ""), None))
        for model in models:
            if model is not None:
                reference = _add_schema(schemas, model)
                # An absent body is an empty object.
                required = any(field.is_required() for field in model.model_fields.values())
                content = {"application/json": {"schema": reference}}
                operation["requestBody"] = {"content": content, "required": required}
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "ns":
                parameter["schema"]["pattern"] = wire.NAMESPACE_PATTERN
            elif parameter["name"] == "cursor":
                parameter["description"] = "`next_cursor` of the page before, as it came"


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> dict[str, str]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}
