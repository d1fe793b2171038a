"""How a process leaves while others stay, so that no call fails meanwhile.

On SIGTERM it says that it is not ready, gives up its shards and ends the calls that only wait, but goes on serving
for `drain_s`: a load balancer needs a moment to learn of it. Each answer closes its
connection, so that callers move on by themselves; those that stay idle for so long are not used any more (the
SDK's are not after 4 s). Then it stops listening, first taking what the kernel has accepted for it, and finishes
what it has. A process that goes because one of its duties has ended (`shared.vital`) goes in the same way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import uvicorn

from shared import vital
from shared.clock import SystemClock

Leave = Callable[[], Awaitable[None]]

_POLL_S = 0.05
_LAST_REQUESTS_S = 1.0
_clock = SystemClock()


class DrainingServer(uvicorn.Server):
    """A server that ends as the module says. `leave` is told at the beginning."""

    def __init__(self, config: uvicorn.Config, leave: Leave | None, drain_s: float) -> None:
        super().__init__(config)
        self._leave = leave
        self._drain_s = drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._leave is not None:
            await self._leave()
        if signal.SIGTERM in self._captured_signals or vital.PROCESS.ended is not None:
            self._close_after_answers()
            until_s = _clock.monotonic_s() + self._drain_s
            while _clock.monotonic_s() < until_s and not self.force_exit:
                await _pause()
        await self._stop_listening()
        await super().shutdown(sockets)

    def _close_after_answers(self) -> None:
        protocol: Any = self.config.http_protocol_class
        protocol.leaving = True
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                cycle.keep_alive = False

    async def _stop_listening(self) -> None:
        """Close the listening sockets, but serve who is connected to them already."""
        accepted: list[socket.socket] = []
        copies = [
            socket.socket(fileno=os.dup(listening.fileno()))
            for server in self.servers
            for listening in server.sockets
        ]
        for server in self.servers:
            server.close()
        for copy in copies:
            copy.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    accepted.append(copy.accept()[0])
            copy.close()
        loop = asyncio.get_running_loop()
        late = [await loop.connect_accepted_socket(self._protocol, sock=made) for made in accepted]
        until_s = _clock.monotonic_s() + _LAST_REQUESTS_S
        while _clock.monotonic_s() < until_s and any(_is_to_be_asked(*one) for one in late):
            await _pause()

    def _protocol(self) -> Any:
        made: Any = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _is_to_be_asked(transport: Any, protocol: Any) -> bool:
    return protocol.cycle is None and not transport.is_closing()


async def _pause() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_POLL_S):
            await asyncio.Event().wait()


def listen_on(host: str, port: int, *, shared: bool) -> list[socket.socket] | None:
    """A socket to listen on beside other processes; None: the server makes its own."""
    if not shared:
        return None
    family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, number)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return [made]
