"""Random faults by a seed: processes and servers are killed, shut down and stopped, at most two at once.

What a fault hits belongs to it until it is healed, so two never meet on one process; everything else may coincide.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from services.local.postgres import Postgres
from services.local.valkey import Valkey
from tests.support.fleet import Process

T = TypeVar("T")
Fault = Callable[[random.Random], Awaitable[None]]
PAUSE_S = (0.5, 3.0)
_ENDS_S = 60.0


class Nemesis:
    """Knows what there is to hurt. `log` is what was done, when."""

    def __init__(self, processes: list[Process], servers: list[Postgres], valkey: Valkey) -> None:
        self._processes = processes
        self._servers = servers
        self._valkey = valkey
        self._held: set[str] = set()
        self._began = time.monotonic()
        self.log: list[str] = []

    async def run(self, seed: str, seconds: float, pause_s: tuple[float, float] = PAUSE_S) -> None:
        """One fault after another, with pauses of so much; start it twice for two at once."""
        rng = random.Random(seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(rng.uniform(*pause_s))
            name, fault = rng.choice(self._choices())
            if name in self._held:
                continue
            async with self._holding(name, fault):
                await fault(rng)

    async def heal(self) -> None:
        """Everything runs again, and says that it is ready."""
        assert not self._held
        for process in self._processes:
            if not process.child.running:
                self._note(f"{process.name} was found ended")
                process.child.spawn()
        for server in self._servers:
            assert server.child.running, server.child.obituary()
        await asyncio.gather(*(process.until_ready() for process in self._processes))

    def _choices(self) -> list[tuple[str, Fault]]:
        found: list[tuple[str, Fault]] = []
        for process in self._processes:
            found += [(process.name, _bound(fault, process)) for fault in (kill, halt, restart)]
        for n, server in enumerate(self._servers):
            found += [(f"postgres {n}", _bound(fault, server)) for fault in (kill_backend, shut_down, freeze)]
        return found + [("valkey", _bound(fault, self._valkey)) for fault in (lose, still, flush)]

    @asynccontextmanager
    async def _holding(self, name: str, fault: Fault) -> AsyncIterator[None]:
        self._held.add(name)
        self._note(f"{fault.__name__} {name}")
        try:
            yield
        finally:
            self._held.discard(name)
            self._note(f"{name} is healed")

    def _note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.2f} {what}")


def _bound(fault: Callable[[T, random.Random], Awaitable[None]], target: T) -> Fault:
    async def run(rng: random.Random) -> None:
        await fault(target, rng)

    run.__name__ = fault.__name__
    return run


async def kill(process: Process, rng: random.Random) -> None:
    await process.kill()
    await asyncio.sleep(rng.uniform(0, 3))
    process.child.spawn()


async def halt(process: Process, rng: random.Random) -> None:
    """It stands still, for longer than its lease of ownership at times."""
    process.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(0.3, 5))
    finally:
        process.signal(signal.SIGCONT)


async def restart(process: Process, rng: random.Random) -> None:
    process.signal(signal.SIGTERM)
    async with asyncio.timeout(_ENDS_S):
        await process.child.wait()
    process.child.spawn()


def _tree(server: Postgres) -> list[int]:
    """The server and its children."""
    pid = server.child.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


async def kill_backend(server: Postgres, rng: random.Random) -> None:
    """The server then ends every connection and recovers by itself."""
    backends = []
    for pid in _tree(server)[1:]:
        with suppress(OSError):
            if b"127.0.0.1(" in Path(f"/proc/{pid}/cmdline").read_bytes():
                backends.append(pid)
    if backends:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(backends), signal.SIGKILL)


async def shut_down(server: Postgres, rng: random.Random) -> None:
    """At once, without ending anything in order."""
    os.kill(server.child.pid, signal.SIGQUIT)
    await server.child.wait()
    await asyncio.sleep(rng.uniform(0, 2))
    await server.start()


async def freeze(server: Postgres, rng: random.Random) -> None:
    stopped = _tree(server)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(0.3, 3))
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def lose(valkey: Valkey, rng: random.Random) -> None:
    os.kill(valkey.child.pid, signal.SIGKILL)
    await valkey.child.wait()
    await asyncio.sleep(rng.uniform(0, 4))
    await valkey.start()


async def still(valkey: Valkey, rng: random.Random) -> None:
    os.kill(valkey.child.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(0.3, 3))
    finally:
        os.kill(valkey.child.pid, signal.SIGCONT)


async def flush(valkey: Valkey, rng: random.Random) -> None:
    """It forgets everything."""
    reader, writer = await asyncio.open_connection("127.0.0.1", valkey.settings.port)
    writer.write(b"FLUSHALL\r\n")
    assert await reader.readline() == b"+OK\r\n"
    writer.close()
