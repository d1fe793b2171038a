"""Several processes of both services on one database, started, stopped and killed one by one."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from services.local.process import Child, Command
from services.local.stack import ROOT
from tests.support.apps import DAG_TOKEN
from tests.support.databases import Database
from tests.support.ports import lasting_port

_TIMEOUT_S = 120.0
_POLL_S = 0.02


class Process:
    """One `python -m services.queue` or `services.dag` with a port of its own, of the code below `root`."""

    def __init__(self, service: str, name: str, env: dict[str, str], run_dir: Path, root: Path = ROOT) -> None:
        self.name = name
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
        prefix = f"HEADGATE_{service.upper()}_"
        own = {f"{prefix}PORT": str(self.port), f"{prefix}OWNER_NAME": name}
        command = Command(
            name=name,
            argv=(sys.executable, "-m", f"services.{service}"),
            env={**inherited, **env, **own},
            cwd=root,
        )
        self.child = Child(command, log_path=run_dir / f"{name}.log", pid_path=run_dir / f"{name}.pid")

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.child.spawn()
        await self.until_ready()

    async def until_ready(self) -> None:
        async with asyncio.timeout(_TIMEOUT_S), httpx.AsyncClient(timeout=5.0) as client:
            while True:
                with suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/readyz")).status_code == 200:
                        return
                assert self.child.running, self.child.obituary()
                await asyncio.sleep(_POLL_S)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.child.pid, number)

    async def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        await self.child.wait()

    async def owners(self) -> dict[int, tuple[str | None, int]]:
        """Owner and epoch of each shard, as this process sees them."""
        async with httpx.AsyncClient(timeout=10.0) as client:
            rows = (await client.get(f"{self.url}/v1/shards")).json()["items"]
        return {row["shard"]: (row["owner"], row["epoch"]) for row in rows}

    async def until_owned(self, *names: str) -> dict[int, tuple[str | None, int]]:
        """Wait until exactly these processes own shards; owners and epochs."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                found = await self.owners()
                if {owner for owner, _ in found.values()} == set(names):
                    return found
                await asyncio.sleep(_POLL_S)


async def run_for_ever(
    service: str, environment: Callable[[], dict[str, str]], run_dir: Path, exit_codes: list[int]
) -> None:
    """One process of a service, and another as often as it ends, until cancelled; how each has ended is noted."""
    child: Child | None = None
    try:
        while True:
            command = Command(
                name=service, argv=(sys.executable, "-m", f"services.{service}"), env=environment(), cwd=ROOT
            )
            child = Child(command, log_path=run_dir / f"{service}.log", pid_path=run_dir / f"{service}.pid")
            child.spawn()
            exit_codes.append(await child.wait())
    finally:
        if child is not None:
            await child.stop()


class Balancer:
    """One address before several processes: connections in turn, past those that refuse."""

    def __init__(self, processes: list[Process]) -> None:
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes = list(processes)
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def replace(self, old: Process, new: Process) -> None:
        """New connections go to another process instead of one of these."""
        self._processes[self._processes.index(old)] = new

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        first = next(self._turn)
        for n in range(len(self._processes)):
            process = self._processes[(first + n) % len(self._processes)]
            try:
                behind = await asyncio.open_connection("127.0.0.1", process.port)
            except OSError:
                continue
            with suppress(asyncio.CancelledError):
                await asyncio.gather(_pipe(reader, behind[1]), _pipe(behind[0], writer))
            return
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Fleet:
    """The processes of one installation, by name."""

    def __init__(self, database: Database, redis_url: str, run_dir: Path, **settings: Any) -> None:
        self._run_dir = run_dir
        self.by_name: dict[str, Process] = {}
        self.balancers: list[Balancer] = []
        self._env = {
            "HEADGATE_QUEUE_SHARDS": database.queue_shards,
            "HEADGATE_DAG_SHARDS": database.dag_shards,
            "HEADGATE_REDIS_URL": redis_url,
            "HEADGATE_DAG_TOKEN": DAG_TOKEN,
        }
        for name, value in settings.items():
            for service in ("QUEUE", "DAG"):
                self._env[f"HEADGATE_{service}_{name.upper()}"] = str(value)

    async def add(self, service: str, *names: str, root: Path = ROOT, **env: str) -> list[Process]:
        """Start processes of one service, of the code below `root`."""
        made = [Process(service, name, self._env | env, self._run_dir, root) for name in names]
        self.by_name |= {process.name: process for process in made}
        await asyncio.gather(*(process.start() for process in made))
        return made

    async def balance(self, processes: list[Process]) -> str:
        """One URL for some processes."""
        made = Balancer(processes)
        self.balancers.append(made)
        await made.start()
        return made.url

    async def close(self) -> None:
        for balancer in self.balancers:
            await balancer.stop()
        for process in self.by_name.values():
            if process.child.running:
                process.signal(signal.SIGKILL)
        await asyncio.gather(*(process.child.stop() for process in self.by_name.values()))


@asynccontextmanager
async def fleet_on(database: Database, redis_url: str, run_dir: Path, **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet that is killed at the end. Keywords are settings of both services."""
    fleet = Fleet(database, redis_url, run_dir, **settings)
    try:
        yield fleet
    finally:
        await fleet.close()
