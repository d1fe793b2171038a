"""Clients that drive load, and the loop that counts what they get done.

`Http` is HTTP/1.1 over one keep-alive connection and nothing else, so that the client's share of a measurement is
small; what is left of it is shown beside every result. One request is in flight at a time, an answer is one with a
Content-Length. The SDK is measured in rows of its own.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

PAYLOAD = "x" * 126  # 128 bytes of JSON


class Refused(Exception):
    """The service answered with an error; `status` and the problem's text."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500].decode(errors='replace')}")
        self.status = status

    @property
    def for_now(self) -> bool:
        """It was turned away: too much is asked for, by everybody or by this namespace."""
        return self.status in (429, 503)


class LeasedDag(msgspec.Struct):
    """Which node an item is."""

    node: str


class Leased(msgspec.Struct):
    """A leased item; a consumer reads the payload, so it is decoded too."""

    id: str
    lease_token: str
    payload: Any = None
    dag: LeasedDag | None = None

    @property
    def node(self) -> str:
        """The key of the node that this item is."""
        assert self.dag is not None
        return self.dag.node


class _Leases(msgspec.Struct):
    items: list[Leased]


class _Result(msgspec.Struct):
    id: str
    status: str


class _Results(msgspec.Struct):
    results: list[_Result]


_encode = msgspec.json.Encoder().encode
_leases = msgspec.json.Decoder(_Leases).decode
_results = msgspec.json.Decoder(_Results).decode


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = bytes(self._buffer[:end]).lower()
        mark = head.index(b"content-length:") + 15
        body_end = end + 4 + int(head[mark:].split(b"\r\n", 1)[0])
        if len(self._buffer) >= body_end:
            body = bytes(self._buffer[end + 4 : body_end])
            del self._buffer[:body_end]
            self._answer.set_result((int(head[9:12]), body))

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class _Line:
    """A connection that is there when it is asked for."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connection: _Connection | None = None

    async def connection(self) -> _Connection:
        if self._connection is None or self._connection.transport is None:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(_Connection, self._host, self._port)
        return self._connection

    def close(self) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()


class Http:
    """One connection to one of the services, opened with the first call and again when the server dropped it."""

    def __init__(self, url: str, *, namespace: str = "default") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._head = f"HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n".encode()
        self._base = f"/v1/namespaces/{namespace}".encode()
        self._line = _Line(self._host, self._port)

    def within(self, namespace: str) -> Http:
        """The same connection, in another namespace."""
        other = copy.copy(self)
        other._base = f"/v1/namespaces/{namespace}".encode()
        return other

    async def call(self, method: bytes, path: str, body: Any = None) -> bytes:
        """Send one request below the namespace; answer the body. Raises Refused for all but 2xx."""
        content = b"" if body is None else _encode(body)
        request = b"%s %s%s %sContent-Length: %d\r\n\r\n%s" % (
            method,
            self._base,
            path.encode(),
            self._head,
            len(content),
            content,
        )
        connection = await self._line.connection()
        status, answer = await connection.exchange(request)
        if not 200 <= status < 300:
            raise Refused(status, answer)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    async def enqueue(self, items: Sequence[dict[str, Any]]) -> list[str]:
        """Enqueue items; their ids. Every one must have been taken."""
        results = _results(await self.call(b"POST", "/enqueue", {"items": items})).results
        assert all(result.status == "enqueued" for result in results), results[0]
        return [result.id for result in results]

    async def dequeue(self, topic: str, count: int, *, wait_s: float = 0.0, lease_s: float = 60.0) -> list[Leased]:
        """Lease up to `count` items."""
        return await self.dequeue_from([{"topic": topic, "count": count}], wait_s=wait_s, lease_s=lease_s)

    async def dequeue_from(
        self, demands: Sequence[dict[str, Any]], *, wait_s: float = 0.0, lease_s: float = 60.0
    ) -> list[Leased]:
        """Lease items of several topics."""
        body = {"topics": demands, "wait_s": wait_s, "lease_s": lease_s}
        return _leases(await self.call(b"POST", "/dequeue", body)).items

    async def ack(self, leased: Sequence[Leased]) -> int:
        """Ack items; how many. Every one must have been acked."""
        body = {"items": [{"id": item.id, "lease_token": item.lease_token} for item in leased]}
        results = _results(await self.call(b"POST", "/ack", body)).results
        assert all(result.status == "acked" for result in results), results[0]
        return len(results)

    async def revive(self, ids: Sequence[str]) -> None:
        """Make disabled items deliverable. Every one must have been disabled."""
        results = _results(await self.call(b"POST", "/revive", {"items": [{"id": item} for item in ids]})).results
        assert all(result.status == "revived" for result in results), results[0]

    async def drain(self, topic: str) -> int:
        """Dequeue and ack until the topic is empty; how many items that met."""
        drained = 0
        while leased := await self.dequeue(topic, 1_000):
            drained += await self.ack(leased)
        return drained


@dataclass(frozen=True)
class Slice:
    """What some workers got done in a stretch of time."""

    items: int
    elapsed_s: float
    wal_bytes: float = 0.0

    @property
    def items_per_s(self) -> float:
        return self.items / self.elapsed_s


@asynccontextmanager
async def alongside(connections: Sequence[Http], act: Callable[[Http], Awaitable[None]]) -> AsyncIterator[None]:
    """Have every connection `act`, without end, while the block runs; then hang up. Raises if one stopped."""
    tasks = [asyncio.ensure_future(act(http)) for http in connections]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for http in connections:
            http.close()
    for end in ends:
        if not isinstance(end, asyncio.CancelledError):
            raise AssertionError("a client stopped") from (end if isinstance(end, BaseException) else None)


async def drive(cycles: Sequence[Callable[[], Awaitable[int]]], duration_s: float) -> Slice:
    """Run every cycle over and over, side by side, until the time is over; count the items they report.

    A cycle that has begun is finished, and the time it takes counts.
    """
    begun = time.perf_counter()
    deadline = begun + duration_s

    async def run(cycle: Callable[[], Awaitable[int]]) -> int:
        items = 0
        while time.perf_counter() < deadline:
            items += await cycle()
        return items

    done = await asyncio.gather(*(run(cycle) for cycle in cycles))
    return Slice(sum(done), time.perf_counter() - begun)
