"""Two processes of each service in front of two servers, each with a shard of either; all of it may be hurt."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from services.local.stack import ROOT
from services.local.valkey import Valkey, ValkeySettings
from tests.integration.soak.nemesis import Nemesis
from tests.support.databases import Database, Databases
from tests.support.fleet import Fleet, fleet_on
from tests.support.ports import free_port

SHARDS = 2
# Short, so that a soak of seconds sees leases of owners run out.
_SETTINGS = {
    "owner_ttl_s": 1.5,
    "drain_s": 1.0,
    "command_timeout_s": 2.0,
    "connect_timeout_s": 1.5,
    "acquire_timeout_s": 1.5,
}


@dataclass(frozen=True)
class Installation:
    """`queue_url` and `dag_url` lead to any process that takes connections."""

    queue_url: str
    dag_url: str
    database: Database
    fleet: Fleet
    nemesis: Nemesis
    run_dir: Path

    async def audit(self) -> str:
        """What `python -m audit` says; nothing it finds may be on its way for longer than a second."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "audit", "--age-s", "1"),
            cwd=ROOT,
            env={
                "HEADGATE_QUEUE_SHARDS": self.database.queue_shards,
                "HEADGATE_DAG_SHARDS": self.database.dag_shards,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return said.decode().strip()

    def tracebacks(self) -> list[str]:
        """Lines of the services' logs that tell of mistakes of ours."""
        found = []
        for name in self.fleet.by_name:
            for line in (self.run_dir / f"{name}.log").read_text(errors="replace").splitlines():
                if any(sign in line for sign in _MISTAKES):
                    found.append(f"{name}: {line[:2000]}")
        return found


_MISTAKES = ("Traceback", "never retrieved", "never awaited", "InternalError", "AssertionError")


@asynccontextmanager
async def installation(run_dir: Path, *, ownership: str = "exclusive") -> AsyncIterator[Installation]:
    """All of it, started; killed at the end."""
    async with AsyncExitStack() as stack:
        servers = [_server(run_dir / f"server{n}") for n in range(SHARDS)]
        for server in servers:
            stack.callback(server.remove)
            stack.push_async_callback(server.stop)
        valkey = Valkey(ValkeySettings(port=free_port(), run_dir=run_dir))
        stack.push_async_callback(valkey.stop)
        await asyncio.gather(valkey.start(), *(server.start() for server in servers))
        made = [await Databases(server.dsn()).create(SHARDS, SHARDS) for server in servers]
        shards = " ".join(f"{n}={database.dsn}" for n, database in enumerate(made))
        database = Database("soak", made[0].dsn, shards, shards)
        fleet = await stack.enter_async_context(
            fleet_on(database, valkey.url, run_dir, ownership=ownership, **_SETTINGS)
        )
        queues = await fleet.add("queue", "q1", "q2")
        queue_url = await fleet.balance(queues)
        dags = await fleet.add("dag", "d1", "d2", HEADGATE_QUEUE_URL=queue_url)
        dag_url = await fleet.balance(dags)
        nemesis = Nemesis([*queues, *dags], servers, valkey)
        yield Installation(queue_url, dag_url, database, fleet, nemesis, run_dir)


def _server(run_dir: Path) -> Postgres:
    run_dir.mkdir()
    options = {**VOLATILE, "shared_buffers": "32MB", "restart_after_crash": "on"}
    return Postgres(
        PostgresSettings(data_dir=run_dir / "data", port=free_port(), run_dir=run_dir, options=options)
    )
