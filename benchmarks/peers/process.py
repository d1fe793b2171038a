"""A peer as processes of its own, told by lines of JSON what to do; the programs are in `programs/`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.load import Slice
from benchmarks.machine import Busy, Meter
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import (
    PeerFailed,
    leave_out,
    node_environment,
    node_of,
    npm_environment,
    python_environment,
)
from services.local.ports import free_port
from services.local.valkey import Valkey, ValkeySettings

PROGRAMS = Path(__file__).parent / "programs"
NODE_PACKAGES = ("graphile-worker@0.18.0", "bullmq@6.7.0", "ioredis@6.0.0", "pg-boss@12.35.0", "pg@8.23.1")
_START_S_MAX, _ANSWER_S_MAX = 90.0, 180.0
_LINE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class Peer:
    """A peer: its program, what it is installed from, how many processes are best, and its Redis, if any.

    `server` is the package of npm of a server that a Python program starts itself, with `ports` for all of it.
    """

    name: str
    program: str
    requirements: tuple[str, ...] = ()
    processes: int = 1
    redis: Mapping[str, str] | None = None
    server: str | None = None
    ports: int = 0

    @property
    def slug(self) -> str:
        """A name for files and databases."""
        return "".join(c if c.isalnum() else "_" for c in self.name.lower())


# Valkey as Redis comes: snapshots only. The other two write every command to a log, flushed once a second, or
# before every answer, which is what all of the others here do.
_REDIS = {"maxmemory": "0", "maxmemory-policy": "noeviction"}
DEFAULT = {**_REDIS, "save": "3600 1 300 100 60 10000"}
EVERYSEC = {**_REDIS, "appendonly": "yes", "appendfsync": "everysec"}
ALWAYS = {**_REDIS, "appendonly": "yes", "appendfsync": "always"}

QUEUES = (
    Peer("pgqueuer", "pgqueuer_peer.py", ("pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.0"), processes=2),
    Peer("procrastinate", "procrastinate_peer.py", ("procrastinate==3.10.0",), processes=2),
    Peer("graphile-worker", "graphile_worker.mjs", processes=2),
    Peer("BullMQ, Redis default (not durable)", "bullmq.mjs", processes=2, redis=DEFAULT),
    Peer("BullMQ, fsync every second", "bullmq.mjs", processes=2, redis=EVERYSEC),
    Peer("BullMQ, fsync always", "bullmq.mjs", processes=2, redis=ALWAYS),
)
# Workers of libraries, one process of each: of handlers that run in its loop, and of plain functions in threads.
WORKERS = tuple(replace(peer, processes=1) for peer in QUEUES if peer.redis != DEFAULT)
PLAIN_WORKERS = (
    Peer("dramatiq, fsync every second", "dramatiq_peer.py", ("dramatiq[redis]==2.2.1",), redis=EVERYSEC),
    Peer("Celery, fsync every second", "celery_peer.py", ("celery[redis]==5.7.0",), redis=EVERYSEC),
)
DURABLE_QUEUES = tuple(peer for peer in QUEUES if peer.redis in (None, ALWAYS))
DAGS = (
    Peer("DBOS", "dbos_peer.py", ("dbos==3.4.0",)),
    Peer("BullMQ flows, fsync every second", "bullmq.mjs", redis=EVERYSEC),
    Peer("BullMQ flows, fsync always", "bullmq.mjs", redis=ALWAYS),
    Peer("Celery, fsync every second", "celery_peer.py", ("celery[redis]==5.7.0",), redis=EVERYSEC),
    Peer("pg-boss flow", "pg_boss.mjs"),
)
DBOS = DAGS[0]
RESTATE = Peer(
    "Restate, fsync always",
    "restate_peer.py",
    ("restate-sdk==1.3.0", "hypercorn==0.18.0", "uvloop==0.23.0"),
    server="@restatedev/restate-server-linux-x64@1.7.12",
    ports=4,
)
WORKFLOWS = (DBOS, RESTATE)


@dataclass
class Running:
    """Processes of one peer, standing still between requests."""

    peer: Peer
    processes: list[asyncio.subprocess.Process]
    roots: dict[str, int | Sequence[int]]
    messages: Path
    versions: dict[str, str] = field(default_factory=dict)

    async def one(self, **request: Any) -> dict[str, Any]:
        """One answer of the first process."""
        self._wake()
        try:
            self._tell(self.processes[0], request)
            return await self._answer(self.processes[0])
        finally:
            self.freeze()

    async def ask(
        self, bench: Bench, outcome: Outcome, **request: Any
    ) -> tuple[list[dict[str, Any]], Busy, float]:
        """The answers of all processes to a measured request, who was busy meanwhile, bytes of log.

        A process answers `begun`, its result, and that it has stopped; measured is what lies
        between the first two.
        """
        self._wake()
        meter = bench.stack.meter.joined(self.roots)
        try:
            for number, process in enumerate(self.processes):
                self._tell(process, {**request, "seed": number})
            await self._answers("begun")
            wal_from, before = await bench.stack.wal_bytes(), meter.read()
            answers = await self._answers()
            busy = Meter.between(before, meter.read())
            wal_bytes = await bench.stack.wal_bytes() - wal_from
            await self._answers("stopped")
        finally:
            self.freeze()
        bench.watch(outcome, busy)
        return answers, busy, wal_bytes

    async def answer(self, bench: Bench, outcome: Outcome, **request: Any) -> dict[str, Any] | None:
        """The first process's answer to a measured request; None, with the reason kept, where the peer fails."""
        try:
            answers, _, _ = await self.ask(bench, outcome, **request)
        except PeerFailed as error:
            leave_out(bench, outcome, self.peer.name, error)
            return None
        return answers[0]

    async def add(self, process: asyncio.subprocess.Process) -> None:
        """One more process; wait until it can be asked."""
        self.processes.append(process)
        self.versions |= (await self._answer(process, _START_S_MAX)).get("ready", {})

    def freeze(self) -> None:
        """An idle peer must not take time from others: it stands still until its next turn."""
        self._signal(signal.SIGSTOP)

    async def _answers(self, key: str | None = None) -> list[dict[str, Any]]:
        answers = await asyncio.gather(*(self._answer(process) for process in self.processes))
        if key is not None and any(key not in answer for answer in answers):
            raise PeerFailed(f"{self.peer.name} said {answers} instead of {key}")
        return answers

    async def _answer(self, process: asyncio.subprocess.Process, limit_s: float = _ANSWER_S_MAX) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                while line := (await process.stdout.readline()).decode(errors="replace"):
                    if line.startswith("@"):
                        found: dict[str, Any] = json.loads(line[1:])
                        return found
        except TimeoutError as error:
            raise PeerFailed(f"{self.peer.name} did not answer in {limit_s:.0f} s") from error
        said = self.messages.read_text(errors="replace").strip().rpartition("\n")[2]
        raise PeerFailed(f"{self.peer.name} ended with {await process.wait()}: {said}")

    @staticmethod
    def _tell(process: asyncio.subprocess.Process, request: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")

    def _wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


@dataclass(frozen=True)
class PeerSide:
    """A peer as a side of a comparison: jobs finished while producers and workers run."""

    running: Running
    batch: int
    clients: int
    backlog: bool = False

    async def warm_up(self, bench: Bench) -> None:
        """A cycle whose result is not kept."""
        await self._cycle(bench, Outcome("", ""), bench.plan.warmup_s)

    async def measure(self, bench: Bench, outcome: Outcome) -> tuple[Slice, Busy]:
        """One slice, and who was busy in it."""
        return await self._cycle(bench, outcome, bench.plan.slice_s)

    async def _cycle(self, bench: Bench, outcome: Outcome, seconds: float) -> tuple[Slice, Busy]:
        clients = max(1, self.clients // len(self.running.processes))
        answers, busy, wal_bytes = await self.running.ask(
            bench,
            outcome,
            do="cycle",
            batch=self.batch,
            clients=clients,
            warm_s=bench.plan.warmup_s,
            seconds=seconds,
            backlog=self.backlog,
        )
        items = sum(answer["items"] for answer in answers)
        elapsed_s = sum(answer["seconds"] for answer in answers) / len(answers)
        # One that did nothing counts one job, so that it can be divided by.
        return Slice(max(1, items), elapsed_s, wal_bytes), busy


@asynccontextmanager
async def run_peer(bench: Bench, peer: Peer, *, mark: str = "") -> AsyncIterator[Running]:
    """Install a peer once, give it a database and a Redis of its own, start it; stop it afterwards.

    Raises PeerFailed when that does not work.
    """
    roots: dict[str, int | Sequence[int]] = {}
    program, settings = await _install(peer)
    redis: Valkey | None = None
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-peer-"))
    running = Running(peer, [], roots, folder / "messages")
    try:
        if peer.redis is not None:
            redis = Valkey(ValkeySettings(port=free_port(), run_dir=folder, options=peer.redis))
            await redis.start()
            settings["redis_url"] = redis.url
            roots["redis"] = redis.child.pid
        elif peer.server is not None:
            settings |= {"folder": str(folder), "ports": _free_ports(peer.ports)}
        else:
            settings["dsn"] = await bench.stack.create_database(f"{peer.slug}{mark}")
        for number in range(peer.processes):
            settings["first"] = number == 0
            await running.add(await _start(program, peer, settings, running.messages))
        roots["peer"] = [process.pid for process in running.processes]
        running.freeze()
        yield running
    finally:
        for process in running.processes:
            if process.returncode is None:
                await _end(process)
        if redis is not None:
            await redis.stop()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _install(peer: Peer) -> tuple[str, dict[str, Any]]:
    """Install a peer once: what runs its program, and what the program is told of it."""
    settings: dict[str, Any] = {"first": True}
    if not peer.program.endswith(".py"):
        place = await node_environment("node", *NODE_PACKAGES)
        return str(node_of(place)), {**settings, "modules": str(place / "node_modules")}
    name = peer.program.removesuffix("_peer.py")
    if peer.server is not None:
        place = await npm_environment(f"{name}-server", peer.server)
        settings["modules"] = str(place / "node_modules")
    return str(await python_environment(name, *peer.requirements)), settings


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found.append(free_port(but=found))
    return found


async def _start(program: str, peer: Peer, settings: dict[str, Any], path: Path) -> asyncio.subprocess.Process:
    with path.open("ab") as messages:
        return await asyncio.create_subprocess_exec(
            program,
            str(PROGRAMS / peer.program),
            json.dumps(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=messages,
            limit=_LINE_BYTES_MAX,
            # A group of its own, so that workers which a program starts stand still with it.
            start_new_session=True,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGCONT, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    try:
        async with asyncio.timeout(5.0):
            await process.wait()
    except TimeoutError:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def open_peers(bench: Bench, peers: Sequence[Peer], outcome: Outcome, stack: Any) -> dict[str, Running]:
    """Start all that can be started, on an AsyncExitStack; those that cannot are named in the outcome."""
    found: dict[str, Running] = {}
    for peer in peers if bench.peers else ():
        try:
            found[peer.name] = await stack.enter_async_context(run_peer(bench, peer))
        except (PeerFailed, OSError) as error:
            leave_out(bench, outcome, peer.name, error)
    versions = outcome.details.setdefault("versions", {})
    for running in found.values():
        versions |= running.versions
    return found
