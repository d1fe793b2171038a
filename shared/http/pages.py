"""The pages that a service shows to people, at `/ui`: files in `page/` that hold no data and ask the API for it.

So there is nothing to log in to and nothing to keep here: what a page may see and do is what its reader's token
may. The policy sent with them lets them load and ask nothing but the service itself. Files are compressed once, at
the start; a browser that has one already is told so by its mark.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from shared.errors import NotFound

_FOLDER: Final = Path(__file__).with_name("page")
_MEDIA: Final = {".css": "text/css", ".js": "text/javascript", ".html": "text/html", ".LICENSE": "text/plain"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "worker-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


class _Part(NamedTuple):
    media: str
    text: bytes
    packed: bytes
    mark: str


def add_pages(app: FastAPI, service: str) -> None:
    """Serve the pages, as those of `service`, and lead there from the root."""
    parts = _parts(service)
    first = parts["index.html"]

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(status_code=307, headers={"location": "ui"})

    @app.get("/ui", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _answer(first, request)

    @app.get("/ui/workflows/{workflow}", include_in_schema=False)
    async def run(workflow: str, namespace: str = "") -> Response:
        place = f"{quote(namespace, safe='')}/runs/{quote(workflow, safe='')}"
        return Response(status_code=307, headers={"location": f"../../ui#/{place}"})

    @app.get("/ui/{name}", include_in_schema=False)
    async def part(name: str, request: Request) -> Response:
        if name not in parts or parts[name] is first:
            raise NotFound("there is no such page")
        return _answer(parts[name], request)


@cache
def _parts(service: str) -> dict[str, _Part]:
    return {path.name: _part(path, service) for path in _FOLDER.iterdir()}


def _part(path: Path, service: str) -> _Part:
    text = path.read_text().replace("{{service}}", service).encode()
    mark = f'"{hashlib.sha256(text).hexdigest()[:20]}"'
    return _Part(_MEDIA[path.suffix], text, gzip.compress(text, 9, mtime=0), mark)


def _answer(part: _Part, request: Request) -> Response:
    headers = {**_HEADERS, "etag": part.mark}
    if request.headers.get("if-none-match") == part.mark:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(part.packed, media_type=part.media, headers={**headers, "content-encoding": "gzip"})
    return Response(part.text, media_type=part.media, headers=headers)
