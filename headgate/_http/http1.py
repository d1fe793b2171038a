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
from types import ModuleType
from typing import Final, cast

import httpx

from headgate._http.hang_up import may_be_hung_up
from headgate._http.messages import IDLE_S_MAX, Answer, AnswerReader, Message, Origin, message_of

resource: ModuleType | None
try:
    import resource
except ImportError:  # on Windows, where files have no such limit
    resource = None

CONNECTIONS_MAX: Final = 200
# Of calls whose answers are held back, beside those: a worker of hundreds of topics asks for each of them, and its
# leases are not to stand in line behind that.
WAITING_MAX: Final = 2_000


class _Connection(asyncio.Protocol):
    """One connection. `exchange` sends a request and waits for its answer."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._is_hung_up = False
        self.received = 0  # bytes of the answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        found = self._reader.end()
        if self._answer is None or self._answer.done():
            return
        if found is not None and exc is None:
            self._answer.set_result(found)
        elif self._is_hung_up:
            self._answer.cancel()
        else:
            reason = str(exc) if exc else "the server closed the connection"
            self._answer.set_exception(httpx.ReadError(reason))

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self.close()
            return
        self.received += len(data)
        try:
            found = self._reader.feed(data)
        except ValueError:
            self.close()
            answer.set_exception(httpx.RemoteProtocolError("the answer is not HTTP/1.1"))
            return
        if found is not None:
            answer.set_result(found)

    def close(self) -> None:
        self._reader.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Say that nobody waits any more. An answer that is on its way is still taken."""
        if self._answer is None or self._answer.done():
            return
        self._is_hung_up, self._reader.reusable = True, False
        if self._transport is None or not self._transport.can_write_eof():
            self._answer.cancel()
            return
        try:
            self._transport.write_eof()
        except OSError:  # it was reset, of which the event loop has not told yet
            self._answer.cancel()

    @property
    def reusable(self) -> bool:
        return self._reader.reusable

    @property
    def fresh(self) -> bool:
        return self.reusable and self.loop.time() - self.idle_since < IDLE_S_MAX

    async def exchange(self, content: bytes, read_s: float | None) -> Answer:
        assert self._transport is not None
        with may_be_hung_up(self):
            self.received = 0
            answer: asyncio.Future[Answer] = self.loop.create_future()
            self._answer = answer
            self._reader.begin()
            self._transport.write(content)
            late = None if read_s is None else self.loop.call_later(read_s, self._late, answer)
            try:
                return await answer
            finally:
                if late is not None:
                    late.cancel()

    @staticmethod
    def _late(answer: "asyncio.Future[Answer]") -> None:
        if not answer.done():
            answer.set_exception(httpx.ReadTimeout("no answer in time"))


class _Pool:
    """The connections of one event loop, which no other loop can use."""

    def __init__(self, connections_max: int) -> None:
        self.free = asyncio.Semaphore(connections_max)
        self.free_to_wait = asyncio.Semaphore(_waiting_max())
        self.idle: defaultdict[Origin, deque[_Connection]] = defaultdict(deque)

    def close(self) -> None:
        for connections in self.idle.values():
            for connection in connections:
                connection.close()
        self.idle.clear()


def _waiting_max() -> int:
    """`WAITING_MAX`, or half of the files that this process may have open: what extends leases needs one, too."""
    if resource is None:
        return WAITING_MAX
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WAITING_MAX if files == resource.RLIM_INFINITY else max(1, min(WAITING_MAX, files // 2))


class Http1Transport(httpx.AsyncBaseTransport):
    """A pool of at most `connections_max` connections over all origins, and beside them `WAITING_MAX`, or half of
    the files that the process may have open, for calls whose answers are held back; further calls wait their turn.

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
        message = message_of(request, await request.aread())
        try:
            status, headers, body = await self.exchange(message)
        except httpx.TransportError as error:
            error.request = request
            raise
        return httpx.Response(status, headers=headers, content=body, request=request)

    async def exchange(self, message: Message) -> Answer:
        """Send a request and read its answer. Raises httpx's transport errors."""
        pool = self._pool(asyncio.get_running_loop())
        free = pool.free_to_wait if message.waits else pool.free
        if free.locked():
            try:
                async with asyncio.timeout(message.pool_s):
                    await free.acquire()
            except TimeoutError:
                raise httpx.PoolTimeout("all connections are in use") from None
        else:
            await free.acquire()
        try:
            return await self._exchange(message, pool)
        finally:
            free.release()

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

    async def _exchange(self, message: Message, pool: _Pool) -> Answer:
        idle = pool.idle[message.origin]
        connection = self._pick(idle) or await self._connect(message.origin, message.connect_s)
        try:
            answer = await connection.exchange(message.content, message.read_s)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and idle is pool.idle.get(message.origin):
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

    async def _connect(self, origin: Origin, timeout_s: float | None) -> _Connection:
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
