"""Serving an app to the world: uvicorn, with what it does not limit by itself.

A request's head and body have absolute deadlines (a byte a second keeps nothing open), the head has a size, and
so have the line of requests that were sent ahead and all bodies together; nobody unknown sends a large one. A
connection on which no request is read or served is idle, whatever else comes on it, and is closed in time; who
does not read what was asked for is cut. A malformed or oversized head is answered with a problem like every other
refusal, then closed: but only where the answer cannot be taken for that to an earlier request.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import threading
import weakref
from collections import Counter
from contextlib import suppress
from typing import Any

import uvicorn
from httptools import HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared import vital
from shared.errors import ServiceError
from shared.http.draining import DrainingServer, Leave, listen_on
from shared.http.fast_http import Exchange
from shared.http.head_cache import KnownHeads, Plain, is_plain_body
from shared.http.hot_path import PROTOCOL, HotPath, Undelivered
from shared.http.refusals import Lingering, refusal
from shared.http.upgrades import without_upgrade
from shared.settings import EdgeSettings

# A body that is larger is looked at while it comes: who sends it, and whether there is room.
_LARGE_BYTES = 64 * 1024

# Exit codes that a supervisor sees.
_STARTUP_FAILURE = 3
_DUTY_ENDED = 4
# After the drain: a process whose duty has ended has nobody who ends it when its way out hangs.
_GO_S_MAX = 30.0

# How long a reader has for the rest of an answer once the process stops; less than it waits for its connections.
_REST_S_MAX = 3.0

# What a request says once.
_ONCE = frozenset((b"host", b"authorization", b"content-type"))
# Who sends one of these wants more than a verb, or a verb in a way that costs a look; the last are a browser's.
_UNUSUAL = frozenset(
    (b"content-encoding", b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site")
)
# A method that the parser does not know is answered as one that no route has; these it knows.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) \S+ HTTP/1\.[01]\r\n")
_NO_ROUTE_HAS = b"TRACE"
_KNOWN = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", _NO_ROUTE_HAS, b"PATCH"))

# Allocations between two looks for garbage that refers to itself; the interpreter's 700 are for small programs.
_GC_THRESHOLDS = (20_000, 20, 20)


class _Bodies:
    """How many bytes of requests' bodies one process holds."""

    held = 0


class _Refused(Exception):
    """Raised inside a parser callback to stop reading."""


def guarded(settings: EdgeSettings, app: Any) -> type[HttpToolsProtocol]:
    """An HTTP/1.1 protocol with the limits of `settings`; plain requests for hot verbs go to them directly."""
    hot: HotPath | None = app if isinstance(app, HotPath) else getattr(app.state, "hot", None)
    heads = KnownHeads()
    bodies = _Bodies()

    class Guarded(HttpToolsProtocol):
        leaving = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._deadline: asyncio.TimerHandle | None = None
            self._reading = True
            self._in_head = True
            self._head_bytes = 0
            self._refusal = 400
            self._is_method_odd = False
            self._begun = 0  # requests, on this connection
            self._upgrade_at: int | None = None  # where what came ends a head that asks for another protocol
            self._is_over = False
            self._lingers = False  # its last answer is written, and what still comes is nothing
            self._unread: asyncio.TimerHandle | None = None
            self._exchange: Exchange | None = None  # of the request that is read or served now
            self.unsent: Undelivered | None = None  # of the answer that the kernel has not taken all of
            self._parts: list[bytes] = []  # of its body, as far as they have come
            self._held = 0  # bytes of it, and of those that stand behind an answer
            self._idle_since_s: float | None = None
            self._idle_look: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Writing is paused while anything is left here of what was written: so that is of one answer alone.
            transport.set_write_buffer_limits(high=0)
            # One too many is turned away; those that were there before go on.
            self._is_over = len(self.connections) > settings.connections_max
            self._arm(settings.head_s_max)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            self._taken()
            self._let_go()
            if self._idle_look is not None:
                self._idle_look.cancel()
            super().connection_lost(exc)
            if self.unsent is not None:
                task = self.loop.create_task(self.unsent(True))
                self.unsent = None
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

        def shutdown(self) -> None:
            super().shutdown()
            if self.unsent is not None:
                self.loop.call_later(_REST_S_MAX, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cut_if_unread()

        def resume_writing(self) -> None:
            self.unsent = None
            if not self.transport.is_closing():  # else all of what is left has to be taken
                self._taken()
            super().resume_writing()

        def _cut_if_unread(self) -> None:
            if self._unread is None:
                self._unread = self.loop.call_later(settings.write_s_max, self.transport.abort)

        def _taken(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def data_received(self, data: bytes) -> None:
            # Behind a plain request nothing of the next one has been seen: the parser need not see it either.
            last = None if self._reading else self._exchange
            if last is not None and last.response_complete:
                known = heads.find(data)
                if known is not None:
                    self._idle_since_s = None
                    exchange = self._exchange_of(known[0])
                    exchange.body = known[1]
                    exchange.begin()
                    return
            was_in_head = self._in_head
            # The request that would be the first to begin in this packet, if that begins with one.
            first = self._begun + 1 if not self._reading or not self._begun else 0
            super().data_received(data)
            if not self._reading:
                if last is not None and self._exchange is not None and self._exchange is not last:
                    heads.learn(data, self._exchange.plain, self._exchange.body)
                self._disarm()
            elif self._is_method_odd:
                self._is_method_odd = False
                self._read_as_unrouted(data, at_begin=self._begun == first)
            elif self._upgrade_at is not None:
                self._read_without_upgrade(data)
            elif self._deadline is None or was_in_head != self._in_head:
                self._arm_for_part()

        def on_message_begin(self) -> None:
            # The scope that uvicorn would make here is made for those who get one.
            self.url = b""
            self.headers = []
            self.expect_100_continue = False
            self._reading = self._in_head = True
            self._head_bytes = 0
            self._begun += 1
            self._idle_since_s = None
            self._disarm()  # the one before had a deadline of its own

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            if len(self.url) > settings.url_bytes_max:
                self._refuse(414)

        def on_header(self, name: bytes, value: bytes) -> None:
            name = name.lower()
            self.headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self._head_bytes += len(name) + len(value) + 4
            if self._head_bytes > settings.head_bytes_max or len(self.headers) > settings.head_fields_max:
                self._refuse(431)

        def on_headers_complete(self) -> None:
            # HTTP/0.9 has no headers to answer with; without a host HTTP/1.1 is not HTTP/1.1
            # (RFC 9112, 3.2). Of what is said twice, this process and the proxy before it may each hear another.
            if self._is_over:
                self._refuse(503)
            version = self.parser.get_http_version()
            plain = self._plain() if hot is not None and version == "1.1" else None
            if plain is not None:
                self._exchange_of(plain)
                self._parts.clear()
            else:
                self._exchange = None
                if self.parser.should_upgrade():
                    if self.parser.get_method() == b"CONNECT":
                        self._refuse(400)
                    return  # it is read again, without that
                if len(self.pipeline) >= settings.pipelined_max:
                    self._refuse(503)
                once = Counter(name for name, _ in self.headers if name in _ONCE)
                if version == "0.9" or (version == "1.1" and not once[b"host"]) or once.total() > len(once):
                    self._refuse(400)
                self._make_scope()
                super().on_headers_complete()
                if self.leaving and self.cycle is not None:
                    self.cycle.keep_alive = False
            self._in_head = False

        def on_body(self, body: bytes) -> None:
            if self._exchange is None and self.cycle.response_complete:
                return  # the answer did not wait for it
            was_small = self._held <= _LARGE_BYTES
            self._held += len(body)
            bodies.held += len(body)
            if self._held > _LARGE_BYTES:
                self._judge_large(was_small)
            if self._exchange is None:
                super().on_body(body)
            else:
                self._parts.append(body)

        def _judge_large(self, is_new: bool) -> None:
            """A large body comes: not of somebody unknown, and not of more than there is room for."""
            if bodies.held > settings.bodies_bytes_max:
                self._refuse(503)
            if is_new and hot is not None:
                authorization = dict(self.headers).get(b"authorization")
                if not hot.lets_in(None if authorization is None else authorization.decode("latin-1")):
                    self._refuse(401)

        def _let_go(self) -> None:
            bodies.held -= self._held
            self._held = 0

        def on_message_complete(self) -> None:
            if self._exchange is None:
                if self.parser.should_upgrade():
                    return
                self._reading = False
                super().on_message_complete()
            else:
                self._reading = False
                self._exchange.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                self._exchange.begin()
            if self.cycle is not None and self.cycle.response_complete:
                self._rest()  # the answer did not wait for the body

        def _make_scope(self) -> None:
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.scope[PROTOCOL] = weakref.ref(self)  # type: ignore[literal-required]
            self.url, self.expect_100_continue = url, expects
            self.headers += headers  # in place: they are the scope's

        def _exchange_of(self, plain: Plain) -> Exchange:
            assert hot is not None
            self.cycle = self._exchange = exchange = Exchange(self, hot, plain)  # type: ignore[assignment]
            if self.leaving:
                exchange.keep_alive = False
            return exchange

        def _plain(self) -> Plain | None:
            """What the head asks for, if that is a hot verb and nothing else that would need a look."""
            assert hot is not None
            is_first = self.cycle is None or self.cycle.response_complete
            method = self.parser.get_method()
            target = hot.target(method, self.url) if is_first else None
            if target is None:
                return None
            given = dict(self.headers)
            connection = given.get(b"connection")
            if not _UNUSUAL.isdisjoint(given) or b"host" not in given or len(given) != len(self.headers):
                return None
            if not hot.guard.knows(given[b"host"]):
                return None
            bytes_max = settings.body_bytes_max if method == b"POST" else 0
            if not is_plain_body(given, bytes_max):
                return None
            if connection is not None and connection.lower() != b"keep-alive":
                return None
            authorization = given.get(b"authorization")
            return Plain(target, None if authorization is None else authorization.decode("latin-1"), bytes_max)

        def on_response_complete(self) -> None:
            self.server_state.total_requests += 1
            if self._held and not self.pipeline:
                self._let_go()
            if self.transport.is_closing():
                self._cut_if_unread()
                return
            if self.flow.read_paused:
                self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            elif not self._reading:
                self._rest()

        def _rest(self) -> None:
            """From now on nothing is read or served."""
            # A timer for every answer costs more than one that looks, now and then, how long nothing has come.
            self._idle_since_s = self.loop.time()
            if self._idle_look is None:
                self._idle_look = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

        def _unset_keepalive_if_required(self) -> None:
            """Bytes are no request (between two, line ends are skipped): what ends the rest is one that begins."""

        def _close_if_idle(self) -> None:
            self._idle_look = None
            if self._idle_since_s is None:
                return
            left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
            if left_s <= 0:
                self._close()
            else:
                self._idle_look = self.loop.call_later(left_s, self._close_if_idle)

        def send_400_response(self, msg: str) -> None:
            if isinstance(sys.exc_info()[1], HttpParserInvalidMethodError):
                self._is_method_odd = True  # `data_received` has the text
            else:
                self._answer(self._refusal, msg)

        def _read_as_unrouted(self, data: bytes, *, at_begin: bool) -> None:
            """Read a request of an unknown method as one of a method that no route has, if the packet begins with
            it. Of another nobody says where it begins, and what is before it must not be read again."""
            line = _REQUEST_LINE.match(data) if at_begin else None
            if line is None or line[1] in _KNOWN:
                self._answer(400, "Invalid HTTP request received.")
                return
            self._begin_parser()
            self.data_received(_NO_ROUTE_HAS + data[line.end(1) :])

        def _unsupported_upgrade_warning(self) -> None:
            raised = sys.exc_info()[1]
            assert isinstance(raised, HttpParserUpgrade)
            self._upgrade_at = raised.args[0]  # `data_received` has what follows

        def _read_without_upgrade(self, data: bytes) -> None:
            """Read a request as one that asks for no other protocol, and what stands behind its head."""
            rest = memoryview(data)
            while self._upgrade_at is not None:
                rest, self._upgrade_at = rest[self._upgrade_at :], None
                method, version = self.parser.get_method(), self.parser.get_http_version()
                head = without_upgrade(method, self.url, version, self.headers)
                self._begin_parser()
                super().data_received(head)
                if not self.transport.is_closing() and not self._lingers:
                    super().data_received(rest)  # type: ignore[arg-type]
            if self._is_method_odd:
                self._is_method_odd = False
                self._answer(400, "Invalid HTTP request received.")
            elif self._reading:
                self._arm_for_part()

        def _begin_parser(self) -> None:
            self.parser = HttpRequestParser(self)
            # As uvicorn has it: what is sent behind a last request is no fault of that one.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

        def _refuse(self, status: int) -> None:
            self._refusal = status
            raise _Refused

        def _close(self) -> None:
            """Close when all that was written is taken, or not taken in time."""
            self.transport.close()
            self._cut_if_unread()

        def _is_first(self) -> bool:
            """Whether what is being read would be answered next, and is not yet."""
            if self._reading and not self._in_head:
                return not self.pipeline and not self.cycle.response_started
            return self.cycle is None or self.cycle.response_complete

        def _answer(self, status: int, detail: str) -> None:
            if not self._is_first():
                self._close()
                return
            self.transport.write(refusal(status, detail))
            if self._is_over or status == 408:  # there is no room, or it had its time
                self._close()
            else:
                self._linger()

        def _linger(self) -> None:
            """Nothing more of this connection is heard: what of its request has come is let go."""
            self._lingers, self._reading, self._exchange = True, False, None
            self._disarm()
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.body = bytearray()
                self.cycle.disconnected = self.cycle.response_complete = True
                self.cycle.message_event.set()
            self._parts.clear()
            self._let_go()
            self.flow.resume_reading()
            Lingering(self.transport, self, bytes_max=settings.body_bytes_max, s_max=settings.body_s_max)

        def _arm_for_part(self) -> None:
            self._arm(settings.head_s_max if self._in_head else settings.body_s_max)

        def _arm(self, limit_s: float) -> None:
            self._disarm()
            self._deadline = self.loop.call_later(limit_s, self._too_slow)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_slow(self) -> None:
            self._deadline = None
            if self.transport.is_closing() or not self._reading:
                return
            if self.flow.read_paused:
                self._arm(settings.body_s_max)  # it may have been sent long since
            elif self._in_head:
                self._answer(408, "")
            else:
                # The app waits for this body: its read ends, and what it answers goes nowhere.
                self._close()

    return Guarded


def serve(app: Any, settings: EdgeSettings, *, port: int, leave: Leave | None = None) -> None:
    """Serve until SIGTERM, or until a duty has ended; running requests are finished first.

    `leave` ends those that only wait.
    """
    shared = listen_on(settings.host, port, shared=settings.port_shared)
    config = uvicorn.Config(
        starting_in_a_line(app),
        host=settings.host,
        port=port,
        http=guarded(settings, app),
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
    )
    server = DrainingServer(config, leave, settings.drain_s)
    vital.PROCESS.on_end(lambda: _go(server, settings.drain_s + _GO_S_MAX))
    gc.freeze()  # what was made until now stays: it need not be looked through again
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()
    with suppress(KeyboardInterrupt):
        server.run(shared)
    if vital.PROCESS.ended is not None:
        sys.exit(_DUTY_ENDED)
    if not server.started:
        sys.exit(_STARTUP_FAILURE)


def starting_in_a_line(app: Any) -> Any:
    """The app; what it cannot start without is said as callers are told of it, and not as a mistake of ours."""

    async def started(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            error = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.failed" and isinstance(error, ServiceError):
                message = {**message, "message": f"it cannot start: {error.detail}"}
            await send(message)

        await app(scope, receive, tell if scope["type"] == "lifespan" else send)

    return started


def _go(server: DrainingServer, go_s_max: float) -> None:
    """Leave as after SIGTERM; if that does not come to an end, without it."""
    server.should_exit = True
    timer = threading.Timer(go_s_max, os._exit, [_DUTY_ENDED])
    timer.daemon = True
    timer.start()
