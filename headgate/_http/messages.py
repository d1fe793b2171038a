"""HTTP/1.1 without a socket: requests as bytes, and answers read as their bytes come."""

from typing import Final, NamedTuple

import httpx

HEAD_BYTES_MAX: Final = 64 * 1024
# Servers drop idle connections (uvicorn after 5 s); one dropped just as we write to it would lose a call.
IDLE_S_MAX: Final = 4.0

# Host, port, and whether by TLS.
Origin = tuple[str, int, bool]
# Status, headers with names in lower case, body.
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class Message(NamedTuple):
    """A request as it is written, where to, and how long each step may take; None: as long as it likes. `waits`:
    its answer may be held back until something happens."""

    origin: Origin
    content: bytes
    connect_s: float | None = None
    read_s: float | None = None
    pool_s: float | None = None
    waits: bool = False


def message_of(request: httpx.Request, body: bytes) -> Message:
    """An httpx request as it is written.

    Raises:
        httpx.LocalProtocolError: a header holds a line break.
    """
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise httpx.LocalProtocolError("a header holds a line break", request=request)
    timeout = request.extensions.get("timeout", {})
    waits = (timeout.get("connect"), timeout.get("read"), timeout.get("pool"))
    return Message(origin_of(request.url), head + b"\r\n\r\n" + body, *waits)


def origin_of(url: httpx.URL) -> Origin:
    return url.host, url.port or (443 if url.scheme == "https" else 80), url.scheme == "https"


class AnswerReader:
    """The answers that come on one connection, one at a time."""

    __slots__ = ("_body", "_body_bytes", "_buffer", "_chunked", "_head", "reusable")

    def __init__(self) -> None:
        self.reusable = True  # whether another request may follow
        self._buffer = bytearray()
        self.begin()

    def begin(self) -> None:
        """A request has been written: what comes now is its answer."""
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._body_bytes: int | None = 0
        self._chunked = False
        self._body = bytearray()

    def feed(self, data: bytes) -> Answer | None:
        """Take in bytes; the answer once it is whole.

        Raises:
            ValueError: it is not HTTP/1.1.
        """
        self._buffer += data
        try:
            return self._read()
        except IndexError:
            raise ValueError("not HTTP/1.1") from None

    def end(self) -> Answer | None:
        """The server has closed the connection; the answer if it was to end so."""
        self.reusable = False
        if self._head is not None and self._body_bytes is None and not self._chunked:
            return (*self._head, bytes(self._buffer))
        return None

    def _read(self) -> Answer | None:
        while self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise ValueError("head too long")
                return None
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._begin_body(head)
        if self._chunked:
            return self._read_chunks()
        if self._body_bytes is not None and len(self._buffer) >= self._body_bytes:
            body = bytes(self._buffer[: self._body_bytes])
            del self._buffer[: self._body_bytes]
            return self._whole(body)
        return None

    def _begin_body(self, head: bytes) -> None:
        status_line, *lines = head.split(b"\r\n")
        version, code = status_line.split(b" ", 2)[:2]
        status = int(code)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(version)
        if 100 <= status < 200:
            return
        headers = []
        self._body_bytes = 0 if status in (204, 304) else None
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise ValueError(line)
            name, value = name.lower(), value.strip()
            headers.append((name, value))
            if name == b"content-length":
                self._body_bytes = _size(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self._chunked = True
            elif name == b"connection" and value.lower() == b"close":
                self.reusable = False
        if version == b"HTTP/1.0" or (self._body_bytes is None and not self._chunked):
            self.reusable = False
        self._head = (status, headers)

    def _read_chunks(self) -> Answer | None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            length = _size(bytes(self._buffer[:end]).split(b";")[0].strip(), 16)
            if length == 0:
                return self._read_trailer(end + 2)
            if len(self._buffer) < end + length + 4:
                return None
            self._body += self._buffer[end + 2 : end + 2 + length]
            del self._buffer[: end + length + 4]
        return None

    def _read_trailer(self, start: int) -> Answer | None:
        if self._buffer.startswith(b"\r\n", start):
            end = start + 2
        else:
            end = self._buffer.find(b"\r\n\r\n", start) + 4
            if end < start + 4:
                return None
        del self._buffer[:end]
        return self._whole(bytes(self._body))

    def _whole(self, body: bytes) -> Answer:
        assert self._head is not None
        self.reusable = self.reusable and not self._buffer
        return (*self._head, body)


def _size(digits: bytes, base: int = 10) -> int:
    if not digits.isalnum():
        raise ValueError(digits)
    return int(digits, base)
