"""Every answer that a test gets is one that the OpenAPI documents describe: its status and its media type."""

import json
import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import httpx

from services.local.stack import ROOT

_UNLISTED = ("/docs", "/openapi.json")


def described(service: str) -> Callable[[httpx.Response], Awaitable[None]]:
    """A response hook for a client of `service` ("queue" or "dag")."""

    async def look(response: httpx.Response) -> None:
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
    for pattern, methods in _calls(service):
        if pattern.fullmatch(path) and request.method.lower() in methods:
            break
    else:
        return f"there is no {request.method} {path}"
    answer = methods[request.method.lower()]["responses"].get(status)
    if answer is None:
        return f"{request.method} {path} has no {status}"
    content = answer.get("content", {})
    return None if media_type in content or status == "204" else f"{request.method} {path} is {media_type}"


@cache
def _calls(service: str) -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    document = json.loads((ROOT / "docs" / "openapi" / f"{service}.json").read_text())
    # Paths with fewer variables first: `/nodes/cancel` is no `/{dag}/cancel`.
    paths = sorted(document["paths"].items(), key=lambda item: item[0].count("{"))
    return [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), methods) for path, methods in paths]
