"""The short way in for hot verbs: `/v1/namespaces/{ns}/{verb}` answered before the framework's stack.

A framework's routing, dependency and middleware layers cost several times what a small batch costs the
database. A verb here gets the same checks (size, media type, token, errors as problem+json) in one pass, and
stays an ordinary documented route of the app behind it: `documented` makes that route from the same function.

`HotPath` as an app serves its verbs over ASGI too. An app that has one as `app.state.hot` serves them by its own
routes; then only what comes plainly goes the short way (see `shared.http.fast_http`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
from fastapi import Request, Response

from shared.admission.connection_priority import Urgency, urgency
from shared.admission.delay import RETRY_S, TOO_MUCH, LoopLag
from shared.admission.fair_queue import Entrance, weigh
from shared.clock import SystemClock
from shared.errors import BadRequest, Overloaded, ServiceError, TooLarge, UnsupportedMedia
from shared.http.access import Access, Caller
from shared.http.browsers import BrowserGuard
from shared.http.edge import problem
from shared.http.json_body import check_media
from shared.log import log
from shared.metrics import HTTP_SECONDS
from shared.settings import EdgeSettings

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
App: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]


# Told of an answer that nobody gets as a whole; and whether a byte of it may have left.
Undelivered: TypeAlias = Callable[[bool], Coroutine[Any, Any, None]]
# In a scope: a weak reference to the protocol of the connection, which knows what becomes of what is written.
PROTOCOL = "headgate.protocol"


class Client(Protocol):
    """Who waits for an answer."""

    def gone(self) -> asyncio.Future[None]:
        """A future that is done once the client has hung up."""
        ...

    def step_aside(self) -> None:
        """The call waits for something to happen: until it ends it is not worked on."""
        ...


class Call(msgspec.Struct):
    """One request to a hot verb."""

    namespace: str
    body: bytes
    caller: Caller
    client: Client
    of: str = ""  # what the verb's path names: the part that stands for `{...}`
    query: str = ""
    retry_after_s: float | None = None  # set by a verb that refused a part for now
    undelivered: Undelivered | None = None  # set by a verb: what to do if nobody gets its answer


class Verb(NamedTuple):
    """What serves a verb, and how urgent it is when not all can be served. One that is asked for by GET says of
    which query it is the verb; another query, any with a POST, is the framework's business."""

    serve: Callable[[Call], Awaitable[tuple[int, Any]]]
    urgency: Urgency
    reads: Callable[[str], bool] | None = None

    @property
    def method(self) -> str:
        """By which HTTP method it is asked for."""
        return "POST" if self.reads is None else "GET"

    def takes(self, method: str, query: str) -> bool:
        """Whether a request to its path is one for it."""
        return method == self.method and (not query if self.reads is None else self.reads(query))


class Target(NamedTuple):
    """What a hot path leads to. `name` is the path behind the namespace, as it is documented."""

    namespace: str
    name: str
    verb: Verb
    of: str = ""
    query: str = ""


class Answer(msgspec.Struct):
    """Status, body and headers (names in lower case, without Content-Length); what to do if nobody gets it."""

    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    undelivered: Undelivered | None = None


_PREFIX = "/v1/namespaces/"
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9._/-]*").fullmatch
_PLAIN_QUERY = re.compile(rb"[a-z_]*=[0-9.]*").fullmatch
_NAMED = re.compile(r"[^/]+/\{[a-z]+\}/[^/]+").fullmatch
_TARGETS_MAX = 1_000
JSON = ((b"content-type", b"application/json"),)
_clock = SystemClock()
_encode = msgspec.json.Encoder().encode


class HotPath:
    """An ASGI app: hot verbs are served here, everything else by `app`."""

    def __init__(
        self, app: Any, verbs: Mapping[str, Verb], access: Access, settings: EdgeSettings, lag: LoopLag
    ) -> None:
        self.app = app
        self.guard = BrowserGuard(settings)
        self.entrance = Entrance(settings.working_kib_max, settings.start_wait_s_max)
        self._lag = lag
        self._verbs = verbs
        # Those whose paths name something, by what stands around the name.
        self._named = {tuple(path.split("/")[::2]): path for path in verbs if _NAMED(path)}
        self._access = access
        self._settings = settings
        self._seconds: dict[tuple[str, int], Any] = {}
        self._targets: dict[bytes, Target] = {}

    @property
    def state(self) -> Any:
        """The state of the app behind."""
        return self.app.state

    def lets_in(self, authorization: str | None) -> bool:
        """Whether a caller is known, or need not be."""
        try:
            self._access.caller(authorization)
        except ServiceError:
            return False
        return True

    def target(self, method: bytes, url: bytes) -> Target | None:
        """The verb that a request's head asks for, if it is a hot one and the URL is as plain as can be."""
        target = self._targets.get(url)
        if target is None:
            path, asks, query = url.partition(b"?")
            if not _PLAIN_PATH(path) or (asks and not _PLAIN_QUERY(query)):
                return None
            target = self._target(path.decode(), query.decode())
            if target is None:
                return None
            if not target.of:
                if len(self._targets) >= _TARGETS_MAX:
                    self._targets.clear()
                self._targets[url] = target
        return target if target.verb.takes(method.decode(), target.query) else None

    def _target(self, path: str, query: str = "") -> Target | None:
        if not path.startswith(_PREFIX):
            return None
        namespace, _, name = path[len(_PREFIX) :].partition("/")
        of = ""
        if name not in self._verbs and name.count("/") == 2:
            kind, of, rest = name.split("/")
            name = self._named.get((kind, rest), "") if of else ""
        verb = self._verbs.get(name)
        return None if verb is None else Target(namespace, name, verb, of, query)

    async def answer(
        self, target: Target, body: bytes, authorization: str | None, client: Client, since_s: float
    ) -> Answer:
        """Do what a call that came at `since_s` asks for. To be run in a task of its own: its urgency is set."""
        verb = target.verb
        try:
            self._lag.let_in(verb.urgency)
            caller = self._access.caller(authorization)
            call = Call(target.namespace, body, caller, client, target.of, target.query)
            status, value = await verb.serve(call)
            headers: Sequence[tuple[bytes, bytes]] = JSON
            if call.retry_after_s is not None:
                headers = (*JSON, (b"retry-after", b"%d" % math.ceil(max(call.retry_after_s, 1))))
            answer = Answer(status, _encode(value), headers, call.undelivered)
        except ServiceError as error:
            answer = refusal(error)
        except Exception as error:
            log.error("request failed", path=f"{_PREFIX}{target.namespace}/{target.name}", exc_info=error)
            answer = refusal(ServiceError("the service failed on this request; it was logged", outcome="unknown"))
        self.measure(target, answer.status, since_s)
        return answer

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            target = self._target(scope["path"], scope["query_string"].decode("latin-1"))
            if target is not None and target.verb.takes(scope["method"], target.query):
                await self._serve(target, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _serve(self, target: Target, scope: Any, receive: Receive, send: Send) -> None:
        since_s = _clock.monotonic_s()
        visitor = _Visitor(receive, target, self.entrance)
        try:
            self.guard.check(scope["method"], scope["path"], scope["headers"])
            authorization, media = read_headers(scope["headers"], self._settings)
            body = await read(receive, media, self._settings)
        except ServiceError as error:
            answer = refusal(error)
            self.measure(target, answer.status, since_s)
        else:
            if await visitor.enter(len(body)):
                answer = await self.answer(target, body, authorization, visitor, since_s)
            else:
                answer = OVERLOADED
                self.measure(target, answer.status, since_s)
        finally:
            visitor.stop()
        protocol = None if answer.undelivered is None else scope.get(PROTOCOL, lambda: None)()
        if protocol is None:
            await _send(answer, send)
        else:
            await _deliver(answer, answer.undelivered, protocol, send)  # type: ignore[arg-type]

    def measure(self, target: Target, status: int, since_s: float) -> None:
        """A call to a verb, which came at `since_s`, is answered."""
        seconds = self._seconds.get((target.name, status))
        if seconds is None:
            seconds = HTTP_SECONDS.labels(f"{_PREFIX}{{ns}}/{target.name}", target.verb.method, status)
            self._seconds[target.name, status] = seconds
        seconds.observe(_clock.monotonic_s() - since_s)


def read_headers(headers: Any, settings: EdgeSettings) -> tuple[str | None, str | None]:
    """The Authorization and Content-Type of a request.

    Raises:
        TooLarge: its Content-Length is over the limit.
        UnsupportedMedia: its body is encoded.
    """
    authorization = media = None
    for name, value in headers:
        if name == b"content-type":
            media = value.decode("latin-1")
        elif name == b"authorization":
            authorization = value.decode("latin-1")
        elif name == b"content-length" and int(value) > settings.body_bytes_max:
            raise TooLarge(f"the body has over {settings.body_bytes_max} bytes")
        elif name == b"content-encoding" and value != b"identity":
            raise UnsupportedMedia("send the body without Content-Encoding")
    return authorization, media


async def read(receive: Receive, media: str | None, settings: EdgeSettings) -> bytes:
    """A request's body, checked as `read_headers` does.

    Raises:
        BadRequest: the connection was closed before the body's end; what came may be JSON, and is not what was to
            be sent.
        TooLarge: it is over the limit.
        UnsupportedMedia: it is something else than JSON.
    """
    body, is_whole = b"", False
    while not is_whole and len(body) <= settings.body_bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the connection was closed before the end of the body; send it whole")
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)
    if len(body) > settings.body_bytes_max:
        raise TooLarge(f"the body has over {settings.body_bytes_max} bytes")
    if body and media != "application/json":
        check_media(media or "", body)
    return body


class _Listener:
    """Hears over ASGI when the client hangs up."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None

    def gone(self) -> asyncio.Future[None]:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.create_task(self._watch(gone))
        return gone

    def step_aside(self) -> None:
        pass

    def stop(self) -> None:
        """Nobody wants to know any more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, gone: asyncio.Future[None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not gone.done():
            gone.set_result(None)


class _Visitor(_Listener):
    """A call over ASGI, as the entrance sees it."""

    def __init__(self, receive: Receive, target: Target, entrance: Entrance) -> None:
        super().__init__(receive)
        self.level = target.verb.urgency
        self.tenant = target.namespace
        self.kib = 1
        self._entrance = entrance
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._is_working = False

    async def enter(self, body_bytes: int) -> bool:
        """Begin when it is this call's turn; false when too much stands."""
        self.kib = weigh(body_bytes)
        self._entrance.enter(self)
        return await self._turn

    @property
    def disconnected(self) -> bool:
        return self._turn.cancelled()

    def start(self) -> None:
        self._is_working = True
        self._turn.set_result(True)

    def refuse(self) -> None:
        if not self._turn.done():
            self._turn.set_result(False)

    def step_aside(self) -> None:
        if self._is_working:
            self._is_working = False
            self._entrance.leave(self.kib)

    def stop(self) -> None:
        self.step_aside()
        super().stop()


async def _send(answer: Answer, send: Send) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _deliver(answer: Answer, undelivered: Undelivered, protocol: Any, send: Send) -> None:
    await protocol.flow.drain()
    if protocol not in protocol.connections:
        await undelivered(False)
        return
    await _send(answer, send)
    if protocol not in protocol.connections:
        await undelivered(True)
    elif protocol.flow.write_paused:
        protocol.unsent = undelivered


def refusal(error: ServiceError) -> Answer:
    """An error as an answer."""
    response = problem(error)
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    return Answer(error.status, bytes(response.body), headers)


OVERLOADED = refusal(Overloaded(TOO_MUCH, retry_after_s=RETRY_S))


def documented(verb: Verb) -> Callable[[str, Request], Awaitable[Response]]:
    """The framework's own route to a hot verb: what the OpenAPI document describes."""

    async def endpoint(ns: str, request: Request) -> Response:
        state = request.app.state
        authorization, media = read_headers(request.scope["headers"], state.settings)
        body = await read(request.receive, media, state.settings)
        listener = _Listener(request.receive)
        call = Call(ns, body, state.access.caller(authorization), listener)
        try:
            with urgency(verb.urgency):
                status, value = await verb.serve(call)
        finally:
            listener.stop()
        return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")

    return endpoint
