"""How long requests take, by route: an ASGI middleware around the framework's routing."""

from __future__ import annotations

from typing import Any

from shared.clock import SystemClock
from shared.metrics import HTTP_SECONDS

_clock = SystemClock()
# What no route matched; the path itself is the caller's and would be a label without bound.
UNKNOWN = "none"


class Timed:
    """Measures from the request's first byte to the end of its answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begun_s = _clock.monotonic_s()
        try:
            await self.app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN)
            HTTP_SECONDS.labels(route, scope["method"], status).observe(_clock.monotonic_s() - begun_s)
