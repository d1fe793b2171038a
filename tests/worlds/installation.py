"""A stage of real processes: two of each service in front of two servers, each with a shard of either.

All of it may be hurt (`nemesis`). The processes' loops run by themselves, and so does time, which leaps besides.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import httpx

from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from services.local.valkey import Valkey, ValkeySettings
from shared.settings import ShardAddress, parse_shards
from tests.support.databases import Database, Databases
from tests.support.described import described
from tests.support.fleet import Fleet, Process, fleet_on
from tests.support.ports import lasting_port
from tests.support.queue_host import ShardClock
from tests.worlds.nemesis import Nemesis

SHARDS = 2
_CALL_S = 5.0  # what a process that stands still is found out by
_SERVER_S = 60.0
_REST_S = 0.3
_LEAP_S_MIN = 0.1
# Short, so that a soak of seconds sees leases of owners run out.
_SETTINGS = {
    "owner_ttl_s": 1.5,
    "drain_s": 1.0,
    "command_timeout_s": 2.0,
    "connect_timeout_s": 1.5,
    "acquire_timeout_s": 1.5,
}


class InstallationClock:
    """The time of the shards of several servers, which may be away for a while: the machine's, with leaps."""

    def __init__(self, databases: list[Database]) -> None:
        self._databases = databases
        self._ahead_s = 0.0  # of every server, by now
        self._leapt_s = 0.0  # of some, while it leaps

    @classmethod
    async def install(cls, databases: list[Database]) -> "InstallationClock":
        for database in databases:
            await (await ShardClock.install(database)).close()
        return cls(databases)

    def now_s(self) -> float:
        """It is that late on every server."""
        return time.time() + self._ahead_s

    def latest_s(self) -> float:
        """It is no later on any server."""
        return time.time() + self._leapt_s

    async def advance(self, seconds: float) -> None:
        """Leap; what is less than a leap passes by itself."""
        if seconds >= _LEAP_S_MIN:
            self._leapt_s += seconds
            await asyncio.gather(*map(self._set, self._databases))
            self._ahead_s = self._leapt_s

    async def _set(self, database: Database) -> None:
        """On one server, as soon as it answers."""
        async with asyncio.timeout(_SERVER_S):
            while True:
                with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection = await asyncpg.connect(database.dsn, timeout=5.0, command_timeout=5.0)
                    try:
                        await connection.execute("UPDATE public.test_clock SET ahead_s = $1", self._leapt_s)
                    finally:
                        await connection.close(timeout=1.0)
                    return
                await asyncio.sleep(0.05)


class Client:
    """One process, as worlds see it."""

    def __init__(self, service: str, process: Process) -> None:
        self.service, self.name, self.process = service, process.name, process
        self.client = httpx.AsyncClient(
            base_url=process.url, timeout=_CALL_S, event_hooks={"response": [described(service)]}
        )


class Installation:
    """What worlds know of a stage, of processes."""

    is_inside = False
    tokens = None
    # Ids are made by the machine's clock, which nobody moves: items are not to be older than it knows them.
    leaps_s_max = 400.0

    def __init__(
        self, database: Database, clock: InstallationClock, fleet: Fleet, nemesis: Nemesis, run_dir: Path
    ):
        self.database, self.clock, self.nemesis = database, clock, nemesis
        self._fleet, self._run_dir = fleet, run_dir
        clients = [Client("queue" if name.startswith("q") else "dag", one) for name, one in fleet.by_name.items()]
        self.queues = [one for one in clients if one.service == "queue"]
        self.dags = [one for one in clients if one.service == "dag"]
        self.unused_shards: list[int] = []

    @property
    def processes(self) -> list[Client]:
        return [*self.queues, *self.dags]

    def shard_numbers(self) -> list[int]:
        return list(range(SHARDS))

    def addresses(self) -> dict[str, list[ShardAddress]]:
        shards = self.database.queue_shards, self.database.dag_shards
        return {name: parse_shards(text, name) for name, text in zip(("queue", "dag"), shards, strict=True)}

    async def rest(self, number: int) -> list[str]:
        """Give the processes time for what they do by themselves."""
        await asyncio.sleep(_REST_S)
        return []

    def tracebacks(self) -> list[str]:
        """Lines of the services' logs that tell of mistakes of ours."""
        found = []
        for name in self._fleet.by_name:
            for line in (self._run_dir / f"{name}.log").read_text(errors="replace").splitlines():
                if any(sign in line for sign in _MISTAKES):
                    found.append(f"{name}: {line[:2000]}")
        return found

    async def close(self) -> None:
        for one in self.processes:
            await one.client.aclose()


_MISTAKES = ("Traceback", "never retrieved", "never awaited", "InternalError", "AssertionError")


@asynccontextmanager
async def installation(run_dir: Path, *, ownership: str = "exclusive") -> AsyncIterator[Installation]:
    """All of it, started; killed at the end."""
    async with AsyncExitStack() as stack:
        servers = [_server(run_dir / f"server{n}") for n in range(SHARDS)]
        for server in servers:
            stack.callback(server.remove)
            stack.push_async_callback(server.stop)
        valkey = Valkey(ValkeySettings(port=lasting_port(), run_dir=run_dir))
        stack.push_async_callback(valkey.stop)
        await asyncio.gather(valkey.start(), *(server.start() for server in servers))
        made = [await Databases(server.dsn()).create(SHARDS, SHARDS) for server in servers]
        shards = " ".join(f"{n}={database.dsn}" for n, database in enumerate(made))
        database = Database("world", made[0].dsn, shards, shards)
        fleet = await stack.enter_async_context(
            fleet_on(database, valkey.url, run_dir, ownership=ownership, **_SETTINGS)
        )
        clock = await InstallationClock.install(made)
        queues = await fleet.add("queue", "q1", "q2")
        queue_url = await fleet.balance(queues)
        dags = await fleet.add("dag", "d1", "d2", HEADGATE_QUEUE_URL=queue_url)
        where = Installation(database, clock, fleet, Nemesis([*queues, *dags], servers, valkey), run_dir)
        stack.push_async_callback(where.close)
        yield where


def _server(run_dir: Path) -> Postgres:
    run_dir.mkdir()
    options = {**VOLATILE, "shared_buffers": "32MB", "restart_after_crash": "on"}
    return Postgres(
        PostgresSettings(data_dir=run_dir / "data", port=lasting_port(), run_dir=run_dir, options=options)
    )
