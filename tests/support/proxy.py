"""A TCP proxy that misbehaves on request: is silent or slow, refuses, cuts, also in the middle of an answer."""

import asyncio
from types import TracebackType
from urllib.parse import urlsplit


class _Link(asyncio.Protocol):
    """One end of a proxied connection; what it hears it hands to the other end."""

    def __init__(self, proxy: "Proxy", *, from_server: bool) -> None:
        self.proxy = proxy
        self.from_server = from_server
        self.other: _Link | None = None
        self.transport: asyncio.Transport | None = None
        self.silent = proxy.silent_at_first
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.proxy.links.add(self)
        if self.proxy.refuses and not self.from_server:
            self.abort()
        elif not self.from_server and not self.silent:
            self._dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_connection(
                lambda: _Link(self.proxy, from_server=True), self.proxy.host, self.proxy.server_port
            )
        except OSError:
            self.abort()
            return
        self.other, other.other = other, self
        other.silent = self.silent
        for data in self.early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self.silent:
            return
        if self.other is None or self.other.transport is None:
            self.early.append(data)
            return
        if self.from_server and self.proxy.bytes_left is not None:
            data, self.proxy.bytes_left = data[: self.proxy.bytes_left], self.proxy.bytes_left - len(data)
            if self.proxy.bytes_left < 0:
                self.proxy.bytes_left = None
                self.other.transport.write(data)
                self.other.transport.close()
                self.abort()
                return
        if self.from_server and self.proxy.delay_s:
            asyncio.get_running_loop().call_later(self.proxy.delay_s, self.other.transport.write, data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.proxy.links.discard(self)
        if self.other is not None and self.other.transport is not None and not self.silent:
            self.other.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Proxy:
    """Stands before one server. New connections are passed on while `silent_at_first` and `refuses` are false.

    Each piece of an answer comes `delay_s` later.
    """

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self.host = parts.hostname or "127.0.0.1"
        self.server_port = parts.port or 5432
        self.links: set[_Link] = set()
        self.silent_at_first = False
        self.refuses = False
        self.delay_s = 0.0
        self.bytes_left: int | None = None
        self._server: asyncio.Server | None = None

    def dsn(self, dsn: str) -> str:
        """The same database, by way of the proxy."""
        return dsn.replace(f":{self.server_port}/", f":{self.port}/")

    @property
    def port(self) -> int:
        """Where the proxy listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def fall_silent(self) -> None:
        """Swallow whatever is said on the connections that are open, and keep them open."""
        for link in self.links:
            link.silent = True

    def cut(self) -> None:
        """Reset every open connection."""
        for link in list(self.links):
            link.abort()

    def cut_after(self, count: int) -> None:
        """Let so many more bytes of answers through, then cut the connection that carries the next."""
        self.bytes_left = count

    async def __aenter__(self) -> "Proxy":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self, from_server=False), "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
