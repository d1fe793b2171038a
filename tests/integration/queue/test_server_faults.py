"""One shard's Postgres is killed, shut down or stopped: its own calls end and say so, the other shard goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate._ids import shard_of
from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from tests.support.databases import Database, Databases
from tests.support.ports import free_port
from tests.support.queue_host import Api, QueueHost, queue_host

END_S = 60.0


@pytest.fixture(scope="module")
async def other_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Postgres]:
    """A server of these tests' own, which they may hurt."""
    run_dir = tmp_path_factory.mktemp("server")
    postgres = Postgres(
        PostgresSettings(
            data_dir=run_dir / "data",
            port=free_port(),
            run_dir=run_dir,
            options={**VOLATILE, "shared_buffers": "16MB", "restart_after_crash": "on"},
        )
    )
    await postgres.start()
    yield postgres
    await postgres.stop()
    postgres.remove()


@pytest.fixture(scope="module")
def other_databases(other_server: Postgres) -> Databases:
    """Makes databases on that server; they go with it."""
    return Databases(other_server.dsn())


@pytest.fixture
async def there(other_databases: Databases) -> AsyncIterator[Database]:
    """A migrated database on that server."""
    made = await other_databases.create(queue_shards=2, dag_shards=1)
    yield made
    await other_databases.drop(made)


@pytest.fixture
async def split(own_host: QueueHost, there: Database) -> AsyncIterator[QueueHost]:
    """A process whose shard 0 is on the run's server and whose shard 1 is on the other."""
    shards = f"0={own_host.database.dsn} 1={there.dsn}"
    limits = {"command_timeout_s": 2.0, "connect_timeout_s": 1.5, "acquire_timeout_s": 1.5}
    async with queue_host(own_host.database, own_host.clock, shards=shards, **limits) as made:
        # A machine that stands still for a moment must not cost a call of the shard that is well.
        patient = made.settings.model_copy(update=dict.fromkeys(limits, END_S))
        here = made.stores[0].shard
        here.pool._settings = here.relaxed._settings = patient
        yield made


class Load:
    """Enqueues with ids of the caller's own, one call after another; knows what was promised."""

    def __init__(self, api: Api, shard: int) -> None:
        self.api = api
        self.shard = shard
        self.promised: set[str] = set()
        self.sent: set[str] = set()
        self.denied: set[str] = set()  # refused for certain
        self.refused = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            item_id = self.api.new_id(self.shard)
            self.sent.add(item_id)
            [result] = await self.api.enqueue({"topic": "t", "id": item_id})
            if result["status"] == "enqueued":
                self.promised.add(item_id)
            else:
                assert result["code"] == "shard_unavailable", result
                self.refused += 1
                if result["outcome"] == "none":
                    self.denied.add(item_id)
                await asyncio.sleep(0.01)

    async def until(self, *, more: int = 0, refused: int = 0) -> None:
        """Until so many more were promised, and so many more refused."""
        promised, before = len(self.promised) + more, self.refused + refused
        async with asyncio.timeout(END_S):
            while len(self.promised) < promised or self.refused < before:
                assert not self._task.done(), self._task
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def drained(api: Api, promised: set[str]) -> set[str]:
    """All that there is. A shard that could not be looked at a moment ago is looked at again at the next poll."""
    found: set[str] = set()
    empty = 0
    async with asyncio.timeout(END_S):
        while empty < 3 or not promised <= found:
            leased = await api.dequeue("t", 500)
            ids = {item["id"] for item in leased}
            assert not ids & found, "handed out twice"
            found |= ids
            empty = 0 if leased else empty + 1
            if not leased:
                await asyncio.sleep(0.05)
    return found


async def backends(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'headgate queue%'"
        )
        return [row["pid"] for row in rows]
    finally:
        await connection.close()


def tree(postmaster: int) -> list[int]:
    """The postmaster and its children."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *map(int, children)]


def postmaster_of(server: Postgres) -> int:
    return int((server._data_dir / "postmaster.pid").read_text().splitlines()[0])


async def kill_one_backend(server: Postgres, dsn: str) -> None:
    os.kill((await backends(dsn))[0], signal.SIGKILL)


async def shut_down_at_once(server: Postgres, dsn: str) -> None:
    os.kill(postmaster_of(server), signal.SIGQUIT)
    await server.child.stop()
    await server.start()


@pytest.mark.parametrize("fault", [kill_one_backend, shut_down_at_once])
async def test_a_crash_of_the_server_loses_nothing_that_was_promised(
    split: QueueHost, there: Database, other_server: Postgres, fault: Any
) -> None:
    """And nothing that was refused for certain is there."""
    api = Api(split)
    here, away = Load(api, 0), Load(api, 1)
    await away.until(more=20)
    await fault(other_server, there.dsn)
    await asyncio.gather(away.until(more=20, refused=0), here.until(more=20))
    await asyncio.gather(here.stop(), away.stop())

    promised = here.promised | away.promised
    found = await drained(api, promised)
    assert here.refused == 0
    assert promised <= found
    assert found <= here.sent | away.sent
    assert found.isdisjoint(away.denied)


async def test_a_server_that_hangs_costs_only_its_own_shard(
    split: QueueHost, there: Database, other_server: Postgres
) -> None:
    api = Api(split)
    here, away = Load(api, 0), Load(api, 1)
    await asyncio.gather(here.until(more=10), away.until(more=10))
    stopped = tree(postmaster_of(other_server))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        await away.until(refused=2)
        await here.until(more=50)
        async with asyncio.timeout(END_S):
            # Also while consumers look at both shards.
            assert {shard_of(item["id"]) for item in await api.dequeue("t", 5)} == {0}
            ready = await split.client.get("/readyz")
            assert sorted(ready.json()["shards"].values()) == ["down", "up"]
            states = [row["state"] for row in (await split.client.get("/v1/shards")).json()["items"]]
            assert states == ["healthy", "open"]
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    await away.until(more=10)
    await asyncio.gather(here.stop(), away.stop())

    assert here.refused == 0
    assert away.promised <= await drained(api, away.promised)


async def test_a_full_server_costs_only_its_own_shard(split: QueueHost, there: Database) -> None:
    """No connection is left over for this process."""
    api = Api(split)
    taken = []
    try:
        while len(taken) < 300:
            taken.append(await asyncpg.connect(there.dsn))
    except asyncpg.TooManyConnectionsError:
        pass
    try:
        results = await api.enqueue(*({"topic": "t", "id": api.new_id(n % 2)} for n in range(4)))
        assert [result["status"] for result in results] == ["enqueued", "refused"] * 2
        assert results[1]["code"] == "shard_unavailable" and results[1]["outcome"] == "none"
    finally:
        await asyncio.gather(*(connection.close() for connection in taken))
    assert [r["status"] for r in await api.enqueue({"topic": "t", "id": api.new_id(1)})] == ["enqueued"]
