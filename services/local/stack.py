"""Servers, migrations and both services on one data directory, kept alive until they are stopped."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from services.local.datadir import DataDir
from services.local.errors import LocalError
from services.local.ports import LOOPBACK, claim, free_port, require_free
from services.local.postgres import Postgres, PostgresSettings
from services.local.process import Child, Command
from services.local.settings import DAG_SHARDS, PORTS, QUEUE_SHARDS, LocalSettings
from services.local.supervisor import Supervisor
from services.local.valkey import Valkey, ValkeySettings

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("queue", "dag")
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 2.0


def _to_stderr(message: str) -> None:
    print(f"headgate: {message}", file=sys.stderr, flush=True)


class Stack:
    """The whole of Headgate on this machine.

        async with Stack(LocalSettings(data_dir=...)) as stack:
            ... stack.queue_url, stack.dag_url ...

    With `skip_time` timers and sleeps of workflows and DAGs do not wait where nothing else runs: for tests. There
    is one shard of DAGs then.

    Entering raises LocalError when something cannot start; whatever had started is stopped again. A child that
    dies is started again, and `report` is told.
    """

    def __init__(
        self,
        settings: LocalSettings | None = None,
        *,
        skip_time: bool = False,
        report: Callable[[str], None] = _to_stderr,
    ) -> None:
        settings = settings or LocalSettings()
        self.settings = settings = replace(settings, skip_time=skip_time or settings.skip_time)
        self.queue_url = settings.url(settings.queue_port)
        self.dag_url = settings.url(settings.dag_port)
        # What the services, the migrations and every other client of the stack are told.
        self.environment: dict[str, str] = {}
        self.children: dict[str, Child] = {}
        self._report = report
        self._processes = {"queue": settings.queue_processes, "dag": settings.dag_processes}
        self._data = DataDir(settings.data_dir)
        self._postgres: Postgres | None = None
        self._valkey: Valkey | None = None
        self._supervisor: Supervisor | None = None
        self._claims: list[int] = []  # of ports that nobody named

    async def __aenter__(self) -> "Stack":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything; return when both services are ready. Call `stop` also when this raises."""
        try:
            await self._start()
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise LocalError(f"cannot start: {place}{error.strerror or error}") from error

    async def _start(self) -> None:
        self._data.acquire()
        await self._data.stop_leftovers()
        if self.settings.fresh:
            self.remove()
        self._settle_ports()
        counts = self._data.layout(
            {"queue": self.settings.queue_shards, "dag": self._dag_shards()},
            {"queue": QUEUE_SHARDS, "dag": DAG_SHARDS},
        )
        await self._start_servers()
        self.environment = self._make_environment(counts)
        self._supervisor = Supervisor(self._report)
        if self._postgres is not None:
            self._supervisor.watch(self._postgres.child, self._postgres.start)
        if self._valkey is not None:
            self._supervisor.watch(self._valkey.child, self._valkey.start)
        await self._migrate()
        if self.settings.with_services:
            await self._start_services()

    def _dag_shards(self) -> int | None:
        wanted = self.settings.dag_shards
        if not self.settings.skip_time:
            return wanted
        if wanted not in (None, 1):
            # Each would skip what its own timers wait for, so a day on one could pass before an hour on another.
            raise LocalError(
                f"time is skipped on one shard of the DAG service, not on {wanted}: say --dag-shards 1"
            )
        return 1

    async def stop(self) -> None:
        """Stop everything, services first, and let go of the data directory."""
        if self._supervisor is not None:
            await self._supervisor.close()
            self._supervisor = None
        servers = [server for server in (self._postgres, self._valkey) if server is not None]
        # Each before what it stands on.
        for name in ("migrations", "dag", "queue"):
            of_one = [child for key, child in self.children.items() if key.partition("-")[0] == name]
            await asyncio.gather(*(child.stop() for child in of_one))
        await asyncio.gather(*(server.stop() for server in servers))
        while self._claims:
            os.close(self._claims.pop())
        self._data.release()

    async def failed(self) -> None:
        """Wait until a child could not be kept alive; raise LocalError saying which and why."""
        assert self._supervisor is not None
        await self._supervisor.failure

    def remove(self) -> None:
        """Delete what the stack keeps in its data directory. It must be stopped."""
        if self.settings.needs_postgres:
            self._make_postgres().remove()
        self._data.forget()

    def _settle_ports(self) -> None:
        """Look that every port is free, and put a free one in the place of a taken one that nobody has named."""
        wanted = []
        if self.settings.with_services:
            wanted += [("queue_port", "the queue service"), ("dag_port", "the dag service")]
        elif self.settings.free_ports:  # for who starts them on what is exported
            own = [("queue_port", "the queue service"), ("dag_port", "the dag service")]
            wanted += [(field, what) for field, what in own if field in self.settings.loose_ports]
        if self.settings.needs_postgres:
            wanted.append(("postgres_port", "Postgres"))
        if not self.settings.redis_url:
            wanted.append(("redis_port", "Valkey"))
        for field, what in wanted:
            port, variable = getattr(self.settings, field), PORTS[field]
            host = LOOPBACK if what in ("Postgres", "Valkey") else self.settings.host
            if field not in self.settings.loose_ports:
                require_free(port, what=what, variable=variable, host=host)
                continue
            claimed = None if self.settings.free_ports else claim(port, host)
            if claimed is not None:
                self._claims.append(claimed)
                continue
            other = free_port(host, but=[getattr(self.settings, name) for name in PORTS])
            if not self.settings.free_ports:
                self._report(f"port {port} is taken, so {what} is on port {other}; {variable} names another")
            moved: dict[str, Any] = {field: other}
            self.settings = replace(self.settings, **moved)
        self.queue_url = self.settings.url(self.settings.queue_port)
        self.dag_url = self.settings.url(self.settings.dag_port)

    async def _start_servers(self) -> None:
        starts = []
        if self.settings.needs_postgres:
            self._postgres = self._make_postgres()
            self.children["postgres"] = self._postgres.child
            starts.append(self._postgres.start())
        if not self.settings.redis_url:
            self._valkey = Valkey(ValkeySettings(port=self.settings.redis_port, run_dir=self._data.run))
            self.children["valkey"] = self._valkey.child
            starts.append(self._valkey.start())
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if outcome is not None:
                raise outcome

    def _make_postgres(self) -> Postgres:
        return Postgres(
            PostgresSettings(
                data_dir=self._data.postgres,
                port=self.settings.postgres_port,
                run_dir=self._data.run,
                options=self.settings.postgres_options,
            )
        )

    def _make_environment(self, counts: dict[str, int]) -> dict[str, str]:
        settings = self.settings
        dsn = self._postgres.dsn() if self._postgres is not None else ""
        redis_url = self._valkey.url if self._valkey is not None else settings.redis_url
        return {
            "HEADGATE_QUEUE_SHARDS": settings.queue_shard_map or f"{dsn}#{counts['queue']}",
            "HEADGATE_DAG_SHARDS": settings.dag_shard_map or f"{dsn}#{counts['dag']}",
            "HEADGATE_REDIS_URL": redis_url,
            "HEADGATE_QUEUE_HOST": settings.host,
            "HEADGATE_DAG_HOST": settings.host,
            "HEADGATE_QUEUE_PORT": str(settings.queue_port),
            "HEADGATE_DAG_PORT": str(settings.dag_port),
            "HEADGATE_QUEUE_URL": self.queue_url,
            "HEADGATE_DAG_URL": self.dag_url,
            "HEADGATE_DAG_TOKEN": os.environ.get("HEADGATE_DAG_TOKEN") or self._data.dag_token(),
        }

    async def _migrate(self) -> None:
        child = self._spawn("migrations", "migrations", "up")
        if await child.wait() != 0:
            raise LocalError(child.obituary())
        await child.stop()
        del self.children["migrations"]

    async def _start_services(self) -> None:
        assert self._supervisor is not None
        ports = {"queue": self.settings.queue_port, "dag": self.settings.dag_port}
        children = [(self._spawn_service(service, name), ports[service]) for service, name in self._services()]
        deadline = time.monotonic() + self.settings.ready_timeout_s
        for child, port in children:
            await self._wait_until_ready(child, port, deadline)
        for child, _ in children:
            self._supervisor.watch(child, partial(_respawn, child))

    def _services(self) -> list[tuple[str, str]]:
        """Each service process: of which service, and its name (`queue`, `queue-2`, ...)."""
        return [
            (service, f"{service}-{n}" if n > 1 else service)
            for service in SERVICES
            for n in range(1, self._processes[service] + 1)
        ]

    def _spawn_service(self, service: str, name: str) -> Child:
        """A process of a service; several of one share its port. Nobody here has to hear that it goes."""
        prefix = f"HEADGATE_{service.upper()}_"
        given = {f"{prefix}OWNER_NAME": name, f"{prefix}DRAIN_S": "0"}
        if self._processes[service] > 1:
            given[f"{prefix}PORT_SHARED"] = "true"
        if service == "dag" and self.settings.skip_time:
            given["HEADGATE_DAG_SKIP_TIME"] = "true"
        return self._spawn(name, f"services.{service}", env=given)

    def _spawn(self, name: str, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        argv = (sys.executable, "-m", module, *arguments)
        given = {**os.environ, **self.environment, **(env or {})}
        command = Command(name=name, argv=argv, env=given, cwd=ROOT)
        child = Child(command, log_path=self._data.run / f"{name}.log", pid_path=self._data.run / f"{name}.pid")
        self.children[name] = child
        child.spawn()
        return child

    async def _wait_until_ready(self, child: Child, port: int, deadline: float) -> None:
        while not await _is_ready(self.settings.host, port, child.command.name):
            if not child.running:
                raise LocalError(child.obituary())
            if time.monotonic() > deadline:
                raise LocalError(f"{child.command.name} was not ready in time; its log is {child.log_path}")
            await asyncio.sleep(_POLL_S)


async def _respawn(child: Child) -> None:
    child.spawn()


async def _is_ready(host: str, port: int, name: str) -> bool:
    """Whether GET /readyz is answered with 200, and by that process of those that share the port."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return head.split()[1:2] == [b"200"] and json.loads(body)["process"] == name
            finally:
                writer.close()
    return False
