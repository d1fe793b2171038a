"""The short way in for hot verbs: `POST /v1/namespaces/{ns}/{verb}` answered before the framework's stack.

A framework's routing, dependency and middleware layers cost several times what a small batch costs the
database. A verb here gets the same checks (size, media type, token, errors as problem+json) in one pass, and
stays an ordinary documented route of the app behind it: `documented` makes that route from the same function.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
from fastapi import Request, Response

from shared.access import Access, Caller
from shared.clock import SystemClock
from shared.errors import ServiceError, TooLarge, UnsupportedMedia
from shared.http import check_media, problem
from shared.lanes import Urgency, urgency
from shared.log import log
from shared.metrics import HTTP_SECONDS
from shared.settings import EdgeSettings
from shared.shedding import LoopLag

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
App: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """One request to a hot verb."""

    namespace: str
    body: bytes
    caller: Caller
    receive: Receive
    retry_after_s: float | None = None  # set by a verb that refused a part for now

    def watch(self) -> tuple[asyncio.Future[None], asyncio.Task[None]]:
        """A future that is done once the client has hung up, and the task to cancel afterwards."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return gone, asyncio.create_task(self._watch(gone))

    async def _watch(self, gone: asyncio.Future[None]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not gone.done():
            gone.set_result(None)


class Verb(NamedTuple):
    """What serves a verb, and how urgent it is when not all can be served."""

    serve: Callable[[Call], Awaitable[tuple[int, Any]]]
    urgency: Urgency


_PREFIX = "/v1/namespaces/"
_clock = SystemClock()


class HotPath:
    """An ASGI app: hot verbs are served here, everything else by `app`."""

    def __init__(
        self, app: Any, verbs: Mapping[str, Verb], access: Access, settings: EdgeSettings, lag: LoopLag
    ) -> None:
        self.app = app
        self._lag = lag
        self._verbs = verbs
        self._access = access
        self._settings = settings
        self._seconds: dict[tuple[str, int], Any] = {}

    @property
    def state(self) -> Any:
        """The state of the app behind."""
        return self.app.state

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(_PREFIX):
            namespace, _, name = scope["path"][len(_PREFIX) :].partition("/")
            verb = self._verbs.get(name)
            if verb is not None:
                await self._serve(verb, namespace, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _serve(self, verb: Verb, namespace: str, scope: Any, receive: Receive, send: Send) -> None:
        begun_s = _clock.monotonic_s()
        status = await self._answer(verb, namespace, scope, receive, send)
        taken_s = _clock.monotonic_s() - begun_s
        name = scope["path"][len(_PREFIX) + len(namespace) :]
        seconds = self._seconds.get((name, status))
        if seconds is None:
            seconds = HTTP_SECONDS.labels(f"{_PREFIX}{{ns}}{name}", "POST", status)
            self._seconds[name, status] = seconds
        seconds.observe(taken_s)

    async def _answer(self, verb: Verb, namespace: str, scope: Any, receive: Receive, send: Send) -> int:
        try:
            self._lag.check(verb.urgency)
            authorization, expected = self._read_headers(scope["headers"])
            body = await self._read(receive, expected)
            call = Call(namespace, body, self._access.caller(authorization), receive)
            with urgency(verb.urgency):
                status, value = await verb.serve(call)
        except ServiceError as error:
            await problem(error)(scope, receive, send)
            return error.status
        except Exception as error:
            log.error("request failed", path=scope["path"], exc_info=error)
            lost = ServiceError("the service failed on this request; it was logged", outcome="unknown")
            await problem(lost)(scope, receive, send)
            return lost.status
        answer = msgspec.json.encode(value)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        if call.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % math.ceil(max(call.retry_after_s, 1))))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        return status

    def _read_headers(self, headers: Any) -> tuple[str | None, str | None]:
        authorization = media = None
        for name, value in headers:
            if name == b"content-type":
                media = value.decode("latin-1")
            elif name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == b"content-length" and int(value) > self._settings.body_bytes_max:
                raise TooLarge(f"the body has over {self._settings.body_bytes_max} bytes")
            elif name == b"content-encoding" and value != b"identity":
                raise UnsupportedMedia("send the body without Content-Encoding")
        return authorization, media

    async def _read(self, receive: Receive, media: str | None) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body", False):
            if len(body) > self._settings.body_bytes_max:
                break
            message = await receive()
            body += message.get("body", b"")
        if len(body) > self._settings.body_bytes_max:
            raise TooLarge(f"the body has over {self._settings.body_bytes_max} bytes")
        if body and media != "application/json":
            check_media(media or "")
        return body


def documented(verb: Verb) -> Callable[[str, Request], Awaitable[Response]]:
    """The framework's own route to a hot verb: what the OpenAPI document describes."""

    async def endpoint(ns: str, request: Request) -> Response:
        state = request.app.state
        hot = HotPath(None, {}, state.access, state.settings, state.lag)
        authorization, media = hot._read_headers(request.scope["headers"])
        body = await hot._read(request.receive, media)
        call = Call(ns, body, state.access.caller(authorization), request.receive)
        with urgency(verb.urgency):
            status, value = await verb.serve(call)
        return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")

    return endpoint
