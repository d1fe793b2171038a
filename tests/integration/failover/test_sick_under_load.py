"""One server misbehaves without dying, under the load of two tenants.

Its calls end in time, work on the other shard goes on, and afterwards nothing is missing, early or doubled.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from services.local.account import give, server_account
from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from tests.integration.failover.judge import judge, missing
from tests.integration.failover.load import Log
from tests.integration.failover.stage import staged
from tests.support.databases import Database, Databases
from tests.support.ports import free_port
from tests.support.proxy import Proxy

STEPS = 3
# Of what is wrong: longer than any deadline of a statement, a lock or a connection.
SICK_S = 4.0
DELAY_S = 0.3
DISK_MIB = 160
# Where each statement takes so long more connections are wanted, and to open one takes many times the delay.
PATIENT = {"connect_timeout_s": 8.0, "acquire_timeout_s": 8.0, "pool_connections_max": 16}

# As a disk without room behaves, where this process may not mount a small one.
_NO_ROOM = """
CREATE FUNCTION {schema}.no_room() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$;
CREATE TRIGGER no_room BEFORE INSERT ON {schema}.{table} EXECUTE FUNCTION {schema}.no_room();
"""


class Patient:
    """The server of the shards numbered 1, and what leads to it: a way for each service."""

    def __init__(self, server: Postgres, database: Database, disk: Path | None, queue: Proxy, dag: Proxy) -> None:
        self.server = server
        self.database = database
        self.disk = disk
        self.queue = queue
        self.dag = dag

    async def say(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.database.dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


Sickness = Callable[[Patient], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def read_only(patient: Patient) -> AsyncIterator[None]:
    await patient.say("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    yield
    await patient.say(
        "SET default_transaction_read_only = off",
        "ALTER SYSTEM RESET default_transaction_read_only",
        "SELECT pg_reload_conf()",
    )


@asynccontextmanager
async def full_disk(patient: Patient) -> AsyncIterator[None]:
    places = [("queue_001", "item"), ("queue_001", "lease"), ("dag_001", "node"), ("dag_001", "dag")]
    if patient.disk is None:
        await patient.say(*(_NO_ROOM.format(schema=schema, table=table) for schema, table in places))
    else:
        filling = patient.disk / "filling"
        with filling.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue
    yield
    if patient.disk is None:
        await patient.say(*(f"DROP FUNCTION {schema}.no_room CASCADE" for schema in ("queue_001", "dag_001")))
    else:
        filling.unlink()


@asynccontextmanager
async def slow(patient: Patient) -> AsyncIterator[None]:
    patient.queue.delay_s = patient.dag.delay_s = DELAY_S
    yield
    patient.queue.delay_s = patient.dag.delay_s = 0.0


@asynccontextmanager
async def locked(patient: Patient) -> AsyncIterator[None]:
    connection = await asyncpg.connect(patient.database.dsn)
    transaction = connection.transaction()
    await transaction.start()
    for table in ("queue_001.item", "dag_001.node"):
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    yield
    await transaction.rollback()
    await connection.close()


@asynccontextmanager
async def refused_to(proxy: Proxy) -> AsyncIterator[None]:
    proxy.refuses = True
    proxy.cut()
    yield
    proxy.refuses = False


def refused_to_the_queue(patient: Patient) -> AbstractAsyncContextManager[None]:
    return refused_to(patient.queue)


def refused_to_the_dags(patient: Patient) -> AbstractAsyncContextManager[None]:
    return refused_to(patient.dag)


@asynccontextmanager
async def small_disk(place: Path) -> AsyncIterator[Path | None]:
    """A tmpfs of its own; None where this process may not mount."""
    place.mkdir()
    size = f"size={DISK_MIB}m"
    argv = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(argv, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Patient]:
    async with AsyncExitStack() as stack:
        disk = await stack.enter_async_context(small_disk(tmp_path / "disk"))
        settings = PostgresSettings(
            data_dir=tmp_path / "data",
            port=free_port(),
            run_dir=tmp_path,
            options={**VOLATILE, "shared_buffers": "16MB"},
        )
        server = Postgres(settings)
        await server.start()
        stack.push_async_callback(server.stop)
        database = await Databases(server.dsn()).create(queue_shards=2, dag_shards=2)
        if disk is not None:
            give(disk, server_account())
            admin = await asyncpg.connect(server.dsn("postgres"))
            await admin.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            await admin.execute(f"ALTER DATABASE {database.name} SET TABLESPACE small")
            await admin.close()
        queue, dag = [await stack.enter_async_context(Proxy(server.dsn())) for _ in range(2)]
        yield Patient(server, database, disk, queue, dag)


# Of each sickness, what of the load is refused meanwhile, and what is never done. A full disk has room in pages
# that are there; who waits for a DAG's end creates no other.
ENQUEUE, CREATE = "enqueue on 1", "create on 1"
BITES: dict[Sickness, tuple[list[str], list[str]]] = {
    read_only: ([ENQUEUE], [ENQUEUE, CREATE]),
    full_disk: ([ENQUEUE], []),
    slow: ([], []),
    locked: ([ENQUEUE], [ENQUEUE, CREATE]),
    refused_to_the_queue: ([ENQUEUE], [ENQUEUE]),
    refused_to_the_dags: ([CREATE], [CREATE]),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sickness", BITES)
async def test_a_sick_shard_costs_itself_alone_and_nothing_for_good(
    databases: Databases, patient: Patient, redis_url: str, sickness: Sickness
) -> None:
    await _sicken(databases, patient, redis_url, sickness)


async def test_a_lock_that_is_held_for_many_times_every_deadline(
    databases: Databases, patient: Patient, redis_url: str
) -> None:
    """As one that is held for minutes is for the deadlines that there are by default."""
    short = {"command_timeout_s": 0.5, "acquire_timeout_s": 0.5, "connect_timeout_s": 0.5}
    await _sicken(databases, patient, redis_url, locked, **short)


async def _sicken(
    databases: Databases, patient: Patient, redis_url: str, sickness: Sickness, **settings: float
) -> None:
    well = await databases.create(queue_shards=1, dag_shards=1)
    dsn = patient.database.dsn
    ways = patient.queue.dsn(dsn), patient.dag.dsn(dsn)
    if sickness is slow:
        settings = PATIENT | settings
    async with staged(well, *ways, redis_url, **settings) as stage:
        async with stage.load.running() as load:
            await load.until_more(STEPS)
            async with sickness(patient):
                await load.until_more(STEPS, shards=[0])
                since = time.monotonic()
                await asyncio.sleep(SICK_S)
                await load.until_more(STEPS, shards=[0])
                # One call may take longer than all of that: of waits for a connection, a new one and a statement.
                for what in BITES[sickness][0]:
                    await load.until_refused(what, since)
                if sickness is slow:
                    await load.until_done(ENQUEUE, since)
                _has_bitten(load.log, sickness, since)
            await load.until_more(STEPS)
        await stage.drain()
        assert judge(load.log, cut_s=None) == []
        assert missing(load.log) == 0
    await databases.drop(well)


def _has_bitten(log: Log, sickness: Sickness, since: float) -> None:
    """A shard that was not sick shows nothing."""
    for what in BITES[sickness][1]:
        assert not log.done(what, since), f"{what} was done"
    if sickness is slow:
        assert min(call.took_s for call in log.done(ENQUEUE, since)) >= DELAY_S
