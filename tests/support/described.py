"""Every answer that a test gets is one that the OpenAPI documents describe: its status, media type and members."""

import json
import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import httpx

from services.local.stack import ROOT

_UNLISTED = ("/docs", "/static-offline-docs", "/openapi.json")


def described(service: str) -> Callable[[httpx.Response], Awaitable[None]]:
    """A response hook for a client of `service` ("queue" or "dag")."""

    async def look(response: httpx.Response) -> None:
        if "json" in response.headers.get("content-type", ""):
            await response.aread()
        problem = undescribed(service, response)
        assert problem is None, f"docs/openapi/{service}.json: {problem}"

    return look


def undescribed(service: str, response: httpx.Response) -> str | None:
    """What the document does not say of an answer; None when it says all."""
    request = response.request
    path, status = request.url.path, str(response.status_code)
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if status[0] in "45":
        return None if media_type == "application/problem+json" else f"a {status} is {media_type or 'bare'}"
    if status[0] == "3" or request.method == "HEAD" or path.startswith(_UNLISTED):
        return None
    for pattern, methods in calls_of(service):
        if pattern.fullmatch(path) and request.method.lower() in methods:
            break
    else:
        return f"there is no {request.method} {path}"
    answer = methods[request.method.lower()]["responses"].get(status)
    if answer is None:
        return f"{request.method} {path} has no {status}"
    content = answer.get("content", {})
    if status == "204":
        return None
    if media_type not in content:
        return f"{request.method} {path} is {media_type}"
    if media_type != "application/json":
        return None
    told = _undeclared(service, content[media_type].get("schema", {}), response.json())
    return None if told is None else f"{request.method} {path} has no `{told}`"


def _undeclared(service: str, schema: dict[str, Any], value: Any) -> str | None:
    """A member that comes and that no choice of its object's schema names."""
    found = [_unnamed(service, choice, value) for choice in _choices(service, schema)]
    return None if None in found else found[0]


def _unnamed(service: str, schema: dict[str, Any], value: Any) -> str | None:
    if isinstance(value, list) and "items" in schema:
        told = (_undeclared(service, schema["items"], element) for element in value)
        return next((name for name in told if name is not None), None)
    if isinstance(value, dict) and "properties" in schema:
        for name, member in value.items():
            if name not in schema["properties"]:
                return name
            inner = _undeclared(service, schema["properties"][name], member)
            if inner is not None:
                return f"{name}.{inner}"
    return None


def _choices(service: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in schema:
        schema = document(service)["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return [found for part in schema.get("anyOf", ()) for found in _choices(service, part)] or [schema]


@cache
def document(service: str) -> dict[str, Any]:
    """What is kept in docs/openapi."""
    return json.loads((ROOT / "docs" / "openapi" / f"{service}.json").read_text())  # type: ignore[no-any-return]


@cache
def calls_of(service: str) -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """A pattern of each path, with its variables as groups, and what is said of its methods."""
    # Paths with fewer variables first: `/nodes/cancel` is no `/{dag}/cancel`.
    paths = sorted(document(service)["paths"].items(), key=lambda item: item[0].count("{"))
    return [(re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), methods) for path, methods in paths]
