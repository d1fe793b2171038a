"""HTTP/1.1 over asyncio with a keep-alive pool, as an `httpx.AsyncBaseTransport`.

Why not httpx's own: measured on a loopback server that answers at once, one small POST cost 500 us of CPU
through `httpx.AsyncClient`, 430 us through `httpx.AsyncHTTPTransport` (1,000 us with 20 calls at a time)
and 60 to 100 us through this class. The DAG service makes a call for every released batch, and a worker for
every job, so the client would be the larger half of a step. Anything httpx can do and this cannot (proxies,
HTTP/2) is had by passing another transport.

One exchange is one request written whole and one answer read whole; there is no pipelining. A connection
whose exchange was cut short (a timeout, a cancelled caller) is closed, never reused.
"""

import asyncio
import contextlib
import ssl
from collections import defaultdict, deque
from typing import Final, cast

import httpx

HEAD_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 200
# Servers drop idle connections (uvicorn after 5 s); one dropped just as we write to it would lose a call.
IDLE_S_MAX: Final = 4.0

_Origin = tuple[str, int, bool]
_Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class _Connection(asyncio.Protocol):
    """One connection. `exchange` sends a request and waits for its answer."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self.reusable = True
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[_Answer] | None = None
        self._buffer = bytearray()
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._body_bytes: int | None = 0
        self._chunked = False
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._answer is None or self._answer.done():
            return
        if self._head is not None and self._body_bytes is None and not self._chunked and exc is None:
            self._finish(bytes(self._buffer))
        else:
            reason = str(exc) if exc else "the server closed the connection"
            self._answer.set_exception(httpx.ReadError(reason))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()
            return
        self._buffer += data
        try:
            self._read()
        except (ValueError, IndexError):
            self.close()
            self._answer.set_exception(httpx.RemoteProtocolError("the answer is not HTTP/1.1"))

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    @property
    def fresh(self) -> bool:
        return self.reusable and self.loop.time() - self.idle_since < IDLE_S_MAX

    async def exchange(self, request: bytes) -> _Answer:
        assert self._transport is not None
        self._answer = self.loop.create_future()
        self._head, self._chunked = None, False
        self._transport.write(request)
        return await self._answer

    def _read(self) -> None:
        while self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise ValueError("head too long")
                return
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._begin(head)
        if self._chunked:
            self._read_chunks()
        elif self._body_bytes is not None and len(self._buffer) >= self._body_bytes:
            body = bytes(self._buffer[: self._body_bytes])
            del self._buffer[: self._body_bytes]
            self._finish(body)

    def _begin(self, head: bytes) -> None:
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
                self._chunked, self._body = True, bytearray()
            elif name == b"connection" and value.lower() == b"close":
                self.reusable = False
        if version == b"HTTP/1.0" or (self._body_bytes is None and not self._chunked):
            self.reusable = False
        self._head = (status, headers)

    def _read_chunks(self) -> None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            length = _size(bytes(self._buffer[:end]).split(b";")[0].strip(), 16)
            if length == 0:
                self._read_trailer(end + 2)
                return
            if len(self._buffer) < end + length + 4:
                return
            self._body += self._buffer[end + 2 : end + 2 + length]
            del self._buffer[: end + length + 4]

    def _read_trailer(self, start: int) -> None:
        if self._buffer.startswith(b"\r\n", start):
            end = start + 2
        else:
            end = self._buffer.find(b"\r\n\r\n", start) + 4
            if end < start + 4:
                return
        del self._buffer[:end]
        self._finish(bytes(self._body))

    def _finish(self, body: bytes) -> None:
        assert self._head is not None and self._answer is not None
        self.reusable = self.reusable and not self._buffer
        if not self._answer.done():
            self._answer.set_result((*self._head, body))


class _Pool:
    """The connections of one event loop, which no other loop can use."""

    def __init__(self, connections_max: int) -> None:
        self.free = asyncio.Semaphore(connections_max)
        self.idle: defaultdict[_Origin, deque[_Connection]] = defaultdict(deque)

    def close(self) -> None:
        for connections in self.idle.values():
            for connection in connections:
                connection.close()
        self.idle.clear()


class Http1Transport(httpx.AsyncBaseTransport):
    """A pool of at most `connections_max` connections over all origins; further calls wait their turn.

    Each event loop that uses it has a pool of its own; that of a loop which has ended is dropped.
    """

    def __init__(
        self, *, connections_max: int = CONNECTIONS_MAX, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._connections_max = connections_max
        self._ssl = ssl_context
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx's transport errors, as its own transports do."""
        pool = self._pool(asyncio.get_running_loop())
        free, timeout = pool.free, request.extensions.get("timeout", {})
        content = _encode(request, await request.aread())
        try:
            async with asyncio.timeout(timeout.get("pool")):
                await free.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("all connections are in use", request=request) from None
        try:
            status, headers, body = await self._exchange(request, content, pool, timeout)
        finally:
            free.release()
        return httpx.Response(status, headers=headers, content=body, request=request)

    async def aclose(self) -> None:
        """Close what is idle, in every loop."""
        here = asyncio.get_running_loop()
        pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            if loop is here:
                pool.close()
            else:
                with contextlib.suppress(RuntimeError):  # it has ended, and its connections with it
                    loop.call_soon_threadsafe(pool.close)

    def _pool(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        pool = self._pools.get(loop)
        if pool is None:
            for other in [other for other in list(self._pools) if other.is_closed()]:
                self._pools.pop(other, None)
            pool = self._pools[loop] = _Pool(self._connections_max)
        return pool

    async def _exchange(
        self, request: httpx.Request, content: bytes, pool: _Pool, timeout: dict[str, float]
    ) -> _Answer:
        url = request.url
        origin = (url.host, url.port or (443 if url.scheme == "https" else 80), url.scheme == "https")
        idle = pool.idle[origin]
        connection = self._pick(idle) or await self._connect(origin, timeout.get("connect"))
        try:
            async with asyncio.timeout(timeout.get("read")):
                answer = await connection.exchange(content)
        except TimeoutError:
            connection.close()
            raise httpx.ReadTimeout("no answer in time", request=request) from None
        except BaseException:
            connection.close()
            raise
        if connection.reusable and idle is pool.idle.get(origin):
            connection.idle_since = connection.loop.time()
            idle.append(connection)
        else:
            connection.close()
        return answer

    @staticmethod
    def _pick(idle: deque[_Connection]) -> _Connection | None:
        """The connection used last, so that the others grow old and go."""
        while idle:
            connection = idle.pop()
            if connection.fresh:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: _Origin, timeout_s: float | None) -> _Connection:
        host, port, secure = origin
        if secure and self._ssl is None:
            self._ssl = httpx.create_ssl_context()
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                ssl_context = self._ssl if secure else None
                _, connection = await loop.create_connection(_Connection, host, port, ssl=ssl_context)
                return connection
        except TimeoutError:
            raise httpx.ConnectTimeout(f"{host}:{port} did not answer") from None
        except OSError as error:
            raise httpx.ConnectError(f"{host}:{port}: {error.strerror or error}") from None


def _size(digits: bytes, base: int = 10) -> int:
    if not digits.isalnum():
        raise ValueError(digits)
    return int(digits, base)


def _encode(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise httpx.LocalProtocolError("a header holds a line break", request=request)
    return head + b"\r\n\r\n" + body
