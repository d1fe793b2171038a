"""Clients for a worker: for coroutines and for threads, where a program has given one of the other kind.

An AsyncClient's own transport serves threads through its event loop: so a worker whose client goes through a
proxy, or answers in a test without a socket, does so for handlers in threads too.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar, cast

import httpx

from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client

T = TypeVar("T")


class ThroughLoop(httpx.BaseTransport):
    """Sends requests of threads through `transport`, which belongs to `loop`."""

    def __init__(self, transport: httpx.AsyncBaseTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises RuntimeError in the loop itself, which would wait for itself."""
        response = self._wait(self._transport.handle_async_request(request))
        parts = aiter(cast(AsyncIterator[bytes], response.stream))
        stream = _Stream(self, response, parts)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream, request=request)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            work.close()
            raise RuntimeError("job.blocking_client waits for this event loop: use job.client in a coroutine")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Stream(httpx.SyncByteStream):
    def __init__(self, through: ThroughLoop, response: httpx.Response, parts: AsyncIterator[bytes]) -> None:
        self._through = through
        self._response = response
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        while part := self._through._wait(self._next()):
            yield part

    def close(self) -> None:
        self._through._wait(self._response.aclose())

    async def _next(self) -> bytes:
        """The next part that holds something; nothing at the end."""
        async for part in self._parts:
            if part:
                return part
        return b""


def beside(client: Client | None) -> AsyncClient:
    """A client for coroutines that does as this one.

    Raises:
        ValueError: it has a transport of its own that only threads can use.
    """
    if client is None:
        return AsyncClient()
    transport: Any = client.transport
    if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
        raise ValueError(
            f"a worker cannot use {type(transport).__name__}, which works in threads only: give it an AsyncClient "
            "whose transport is an httpx.AsyncBaseTransport"
        )
    return AsyncClient(**_settings(client), transport=transport)


def client_like(client: AsyncClient, loop: asyncio.AbstractEventLoop | None) -> Client:
    """A client for threads that does as this one."""
    transport: Any = client.transport
    if transport is not None and not isinstance(transport, httpx.BaseTransport):
        assert loop is not None, "handlers run while the worker does"
        transport = ThroughLoop(transport, loop)
    return Client(**_settings(client), transport=transport)


def _settings(client: AsyncClient | Client) -> dict[str, Any]:
    to = client.endpoints
    return {
        "queue_url": to.queue_url,
        "dag_url": to.dag_url,
        "token": to.token,
        "namespace": client.namespace,
        "timeout_s": to.timeout_s,
        "retry": client.retry,
    }
