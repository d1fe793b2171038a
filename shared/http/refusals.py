"""A refusal that is written below ASGI, and what its client goes on sending.

Most clients look for an answer only behind the body that they send. A connection that is closed while a body still
comes is reset, and its client may never see what was answered; so what comes is read for a while, and dropped
(RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio

import msgspec

_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    408: "Request Timeout",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    408: "too_slow",
    414: "url_too_long",
    431: "headers_too_large",
    503: "overloaded",
}
# More of an answer's head than its status and its body.
_FIELDS = {401: "www-authenticate: Bearer\r\n", 503: "retry-after: 1\r\n"}


def refusal(status: int, detail: str) -> bytes:
    """An answer of this status, that closes; `detail` is what a 400 says, the others have one text."""
    title = _TITLES[status]
    body = msgspec.json.encode(
        {
            "type": f"urn:headgate:problem:{_CODES[status]}",
            "title": title,
            "status": status,
            "detail": detail if status == 400 else title,
            "code": _CODES[status],
            "outcome": "none",
        }
    )
    head = f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
    head += f"{_FIELDS.get(status, '')}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


class Lingering(asyncio.Protocol):
    """Takes a connection over whose last answer was written: it ends when the client ends it, has sent more than
    `bytes_max`, or after `s_max`. The protocol before it is told what becomes of what was written."""

    def __init__(
        self,
        transport: asyncio.Transport,
        before: asyncio.Protocol,
        *,
        bytes_max: int,
        s_max: float,
    ) -> None:
        self._transport = transport
        self._before = before
        self._left_bytes = bytes_max
        self._end = asyncio.get_running_loop().call_later(s_max, transport.abort)
        transport.set_protocol(self)
        transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        self._before.connection_lost(exc)
