"""Peers that run beside us, each in an environment of its own: never in ours."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.peers.environment import PeerFailed, python_environment
from benchmarks.peers.pgmq import Pgmq
from benchmarks.stack import BenchStack

__all__ = ["DBOS", "DbosFan", "PeerFailed", "dbos_fan", "open_pgmq"]

DBOS = "dbos==3.4.0"
_SCRIPT = Path(__file__).parent / "dbos_fan.py"
_START_S_MAX = 120.0
_RUN_S_MAX = 120.0


@asynccontextmanager
async def open_pgmq(bench: Bench) -> AsyncIterator[Pgmq | None]:
    """pgmq on the scenario's server; None where it is not asked for. Raises PeerFailed."""
    if not bench.pgmq:
        yield None
        return
    pgmq = await Pgmq.open(bench.stack, bench.pgmq_sql)
    bench.progress.note(f"pgmq {pgmq.version}")
    try:
        yield pgmq
    finally:
        await pgmq.close()


class DbosFan:
    """A DBOS process on a database of its own on our server."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, width: int) -> float:
        """Run one fan; the seconds it took."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{width}\n".encode())
        taken_s = float(await self._line(_RUN_S_MAX))
        # An idle peer must not take time from us: it stands still until its next turn.
        self._process.send_signal(signal.SIGSTOP)
        return taken_s

    async def ready(self) -> None:
        """Wait until it can run."""
        while await self._line(_START_S_MAX) != "ready":
            pass

    async def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = (await self._process.stdout.readline()).decode().strip()
        if not line:
            raise PeerFailed("DBOS ended; its messages are above")
        return line


@asynccontextmanager
async def dbos_fan(stack: BenchStack) -> AsyncIterator[DbosFan]:
    """Install DBOS once, make its database, start it; stop it afterwards.

    Raises PeerFailed when that does not work.
    """
    python = await python_environment("dbos", DBOS)
    admin = await stack.connect({})
    try:
        await admin.execute("CREATE DATABASE dbos_fan")
    finally:
        await admin.close()
    dsn = stack.dsn.rpartition("/")[0] + "/dbos_fan"
    process = await asyncio.create_subprocess_exec(
        str(python), str(_SCRIPT), dsn, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        peer = DbosFan(process)
        await peer.ready()
        yield peer
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
