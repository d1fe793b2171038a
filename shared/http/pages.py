"""The pages that a service shows to people, at `/ui`: files in `page/` that hold no data and ask the API for it.

So there is nothing to log in to and nothing to keep here: what a page may see is what its reader's token may see,
and it changes nothing. The policy sent with them lets them load and ask nothing but the service itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI, Response

from shared.errors import NotFound

_FOLDER: Final = Path(__file__).with_name("page")
_MEDIA: Final = {".css": "text/css", ".js": "text/javascript", ".html": "text/html"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def add_pages(app: FastAPI, service: str) -> None:
    """Serve the pages of `service`, and lead there from the root."""
    files = {path.name: path.read_text() for path in _FOLDER.iterdir()}
    first = files.pop("index.html").replace("{{service}}", service)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(status_code=307, headers={"location": "ui"})

    @app.get("/ui", include_in_schema=False)
    async def page() -> Response:
        return _answer("index.html", first)

    @app.get("/ui/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise NotFound("there is no such page")
        return _answer(name, files[name])


def _answer(name: str, text: str) -> Response:
    return Response(text, media_type=_MEDIA[Path(name).suffix], headers=_HEADERS)
