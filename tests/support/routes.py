"""What the framework finds out about routes, found out once for all apps of a test run."""

from typing import Any

from fastapi import FastAPI

_included: dict[int, Any] = {}


def share_routes(app: FastAPI) -> None:
    """Let this app serve with the included routers of the first one, whose handlers are read and bound already.

    Handlers find their service by the app of the request; a service's apps include the same routers alike.
    """
    routes = app.router.routes
    for place, route in enumerate(routes):
        router = getattr(route, "original_router", None)
        if router is not None:
            routes[place] = _included.setdefault(id(router), route)
