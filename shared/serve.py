"""Serving an app to the world: uvicorn, with what it does not limit by itself.

A request's head and body have absolute deadlines (a byte a second keeps nothing open), the head has a size,
a malformed or oversized head is answered with a problem like every other refusal, then closed, and who does not
read what was asked for is cut.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared.draining import DrainingServer, Leave, listen_on
from shared.settings import EdgeSettings

_TITLES = {400: "Bad Request", 408: "Request Timeout", 414: "URI Too Long", 431: "Request Header Fields Too Large"}
_CODES = {400: "bad_request", 408: "too_slow", 414: "url_too_long", 431: "headers_too_large"}


_STARTUP_FAILURE = 3


class _Refused(Exception):
    """Raised inside a parser callback to stop reading."""


def guarded(settings: EdgeSettings) -> type[HttpToolsProtocol]:
    """An HTTP/1.1 protocol with the limits of `settings`."""

    class Guarded(HttpToolsProtocol):
        leaving = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._deadline: asyncio.TimerHandle | None = None
            self._reading = True
            self._in_head = True
            self._head_bytes = 0
            self._refusal = 400
            self._unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arm(settings.head_s_max)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            self._taken()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread is None:
                self._unread = self.loop.call_later(settings.write_s_max, self.transport.abort)

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

        def _taken(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def data_received(self, data: bytes) -> None:
            was_in_head = self._in_head
            super().data_received(data)
            if not self._reading:
                self._disarm()
            elif self._deadline is None or was_in_head != self._in_head:
                self._arm(settings.head_s_max if self._in_head else settings.body_s_max)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._reading = self._in_head = True
            self._head_bytes = 0

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            if len(self.url) > settings.url_bytes_max:
                self._refuse(414)

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._head_bytes += len(name) + len(value) + 4
            if self._head_bytes > settings.head_bytes_max or len(self.headers) > settings.head_fields_max:
                self._refuse(431)

        def on_headers_complete(self) -> None:
            # HTTP/0.9 has no headers to answer with; without a host HTTP/1.1 is not HTTP/1.1 (RFC 9112, 3.2).
            version = self.parser.get_http_version()
            if version == "0.9" or (version == "1.1" and not any(name == b"host" for name, _ in self.headers)):
                self._refuse(400)
            self._in_head = False
            super().on_headers_complete()
            if self.leaving and self.cycle is not None:
                self.cycle.keep_alive = False

        def on_message_complete(self) -> None:
            self._reading = False
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            self._answer(self._refusal, msg)

        def _refuse(self, status: int) -> None:
            self._refusal = status
            raise _Refused

        def _answer(self, status: int, detail: str) -> None:
            body = msgspec.json.encode(
                {
                    "type": f"urn:headgate:problem:{_CODES[status]}",
                    "title": _TITLES[status],
                    "status": status,
                    "detail": detail if status == 400 else _TITLES[status],
                    "code": _CODES[status],
                    "outcome": "none",
                }
            )
            head = f"HTTP/1.1 {status} {_TITLES[status]}\r\ncontent-type: application/problem+json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()

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
            if self._in_head:
                self._answer(408, "")
            else:
                # The app waits for this body: its read ends, and what it answers goes nowhere.
                self.transport.close()

    return Guarded


def serve(app: Any, settings: EdgeSettings, *, port: int, leave: Leave | None = None) -> None:
    """Serve until SIGTERM; running requests are finished first. `leave` ends those that only wait."""
    shared = listen_on(settings.host, port, shared=settings.port_shared)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=port,
        http=guarded(settings),
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=settings.connections_max,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
    )
    server = DrainingServer(config, leave, settings.drain_s)
    with suppress(KeyboardInterrupt):
        server.run(shared)
    if not server.started:
        sys.exit(_STARTUP_FAILURE)
