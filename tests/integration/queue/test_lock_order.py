"""Statements that take many rows of `ready` at once meet in one order, however their callers know the items."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headgate._ids import new_id
from services.queue.model import Claim, Key
from services.queue.store import items
from shared.http.access import Caller
from shared.postgres import connections
from tests.support.databases import Database, Databases
from tests.support.queue_host import AT_ONCE, Api, QueueHost, queue_host

ANYBODY = Caller(frozenset({"enqueue", "consume", "admin"}))
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0
"""
ITEMS = 5

# Every item is ready, or leased, or gone.
ASTRAY = """
SELECT count(*) FROM item WHERE NOT EXISTS (SELECT FROM lease WHERE item.id = ANY (lease.ids))
    AND NOT EXISTS (SELECT FROM ready WHERE ready.id = item.id)
"""


class Meeting:
    """Items that lie in `ready` in another order than that of their keys or of their ids."""

    def __init__(self, api: Api, topic_id: int, keys: Sequence[Key]) -> None:
        self.api = api
        self.store = api.host.stores[0]
        self.topic_id = topic_id
        self.keys = keys  # as they lie
        self.ids = [key.id for key in keys]

    async def claim(self) -> None:
        await self._claim(self.keys)

    async def claim_backwards(self) -> None:
        await self._claim(self.keys[::-1])

    async def cancel(self) -> None:
        cancels = self.api.host.process.cancels
        results = await cancels.cancel(self.api.namespace, self.ids[::-1], ANYBODY)
        assert {result.status for result in results} == {"cancelled"}

    async def purge_ready(self) -> None:
        operations = self.api.host.process.operations
        wanted = {"topic": "t", "state": "ready"}
        await operations.chunk(self.store, await operations.place(self.api.namespace, "purge", wanted))

    async def expire(self) -> None:
        await self.api.host.process.expiry.expire(self.store, self.ids[::-1])

    async def _claim(self, keys: Sequence[Key]) -> None:
        await self.store.claim([Claim(self.topic_id, keys, str(uuid.uuid4()), 60.0)], relaxed=False)


@pytest.fixture(scope="module")
async def host(databases: Databases) -> AsyncIterator[QueueHost]:
    """A queue process on one shard whose deadlocks are noticed at once."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with connected(database) as connection:
        await connection.execute(f"ALTER DATABASE {database.name} SET deadlock_timeout = '20ms'")
    async with queue_host(database) as made:
        yield made
    await databases.drop(database)


@asynccontextmanager
async def connected(database: Database) -> AsyncIterator[Any]:
    connection = await database.connect("queue_000")
    try:
        yield connection
    finally:
        await connection.close()


async def met(host: QueueHost, items: Sequence[dict[str, Any]]) -> Meeting:
    """Items enqueued one after another, so that they lie in this order."""
    api = Api(host)
    for item in items:
        await api.enqueue_one("t", **item)
    found = await host.rows("SELECT topic_id, priority, deliver_at, id::text FROM ready ORDER BY ctid")
    return Meeting(api, found[0]["topic_id"], [Key(*row[1:]) for row in found])


def by_priority() -> list[dict[str, Any]]:
    return [{"priority": -n} for n in range(ITEMS)]


def by_id() -> list[dict[str, Any]]:
    return [{"id": item_id} for item_id in sorted((new_id(0) for _ in range(ITEMS)), reverse=True)]


@pytest.mark.parametrize("verb", ["claim_backwards", "cancel", "purge_ready", "expire"])
@pytest.mark.parametrize("items", [by_priority, by_id])
async def test_a_claim_and_another_bulk_statement_take_rows_in_one_order(
    host: QueueHost, items: Callable[[], list[dict[str, Any]]], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stop at a row in the middle that somebody holds: what each has taken the other must not want."""
    is_late = verb == "expire"
    meeting = await met(host, [{**item, "ttl_s": 10} for item in items()] if is_late else items())
    if is_late:
        await host.clock.advance(20)
    monkeypatch.setattr(connections, "RETRIES_MAX", 0)  # a deadlock is an error at once

    async with connected(host.database) as holder, connected(host.database) as watcher:
        async with holder.transaction():
            await holder.execute("SELECT FROM ready WHERE id = $1 FOR UPDATE", meeting.ids[ITEMS // 2])
            both = [asyncio.create_task(meeting.claim()), asyncio.create_task(getattr(meeting, verb)())]
            await until_waiting(watcher, 2)
        await asyncio.gather(*both)
        await host.clock.reset()
        assert await watcher.fetchval("SELECT count(*) FROM ready") == 0
        assert await watcher.fetchval(ASTRAY) == 0


async def test_a_cancel_that_comes_back_for_more_is_made_again_after_a_deadlock(
    host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that a cancel met as leased is given back under its eyes, into a place before those it has taken."""
    meeting = await met(host, [{"backoff": AT_ONCE}, {}])
    api = meeting.api
    [first] = await api.dequeue("t", 1)
    assert first["id"] == meeting.ids[0]
    real = items.lock_items
    calls = itertools.count()
    claims: list[asyncio.Task[None]] = []

    async with connected(host.database) as watcher:
        await watcher.execute("VACUUM ready")

        async def lock_items(tx: Any, ids: Sequence[str]) -> dict[str, Any]:
            if next(calls) == 0:
                assert await api.nack(first) == ["requeued"]
                [place] = await watcher.fetch(
                    "SELECT priority, deliver_at, id::text FROM ready WHERE id = $1", first["id"]
                )
                meeting.keys = [Key(*place), meeting.keys[1]]
                claims.append(asyncio.create_task(meeting.claim()))
                await until_waiting(watcher, 1)
            return await real(tx, ids)

        monkeypatch.setattr(items, "lock_items", lock_items)
        deadlocks = spy_on_deadlocks(monkeypatch)
        await meeting.cancel()
        await claims[0]
        assert len(deadlocks) == 1
        assert await watcher.fetchval("SELECT count(*) FROM item WHERE id = ANY ($1::uuid[])", meeting.ids) == 0
        assert await watcher.fetchval("SELECT count(*) FROM ready") == 0


async def until_waiting(watcher: Any, count: int) -> None:
    """Until so many backends wait for a lock of another."""
    async with asyncio.timeout(30):
        while await watcher.fetchval(WAITING) < count:
            await asyncio.sleep(0.005)


def spy_on_deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    found: list[Exception] = []
    real = connections.Pool._retrying

    async def retrying(self: connections.Pool, run: Callable[[Any], Awaitable[Any]]) -> Any:
        async def watched(connection: Any) -> Any:
            try:
                return await run(connection)
            except asyncpg.DeadlockDetectedError as error:
                found.append(error)
                raise

        return await real(self, watched)

    monkeypatch.setattr(connections.Pool, "_retrying", retrying)
    return found
