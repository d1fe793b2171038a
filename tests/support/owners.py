"""Owners of the shards of one database, whose loops run only when the test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services.queue.settings import QueueSettings
from shared.shards.ownership import Ownership
from shared.shards.shard_map import ShardMap
from tests.support.databases import Database


class HandClock:
    """A monotonic clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Owners:
    """Some processes' ownerships, by name, on the queue shards of a database."""

    def __init__(self, database: Database, redis_url: str | None) -> None:
        self._database = database
        self._redis_url = redis_url
        self.clock = HandClock()
        self.by_name: dict[str, Ownership] = {}
        self._shards: list[ShardMap] = []

    def add(self, name: str, **settings: Any) -> Ownership:
        """One more process."""
        made = QueueSettings(
            shards=self._database.queue_shards,
            owner_name=name,
            **{"HEADGATE_REDIS_URL": self._redis_url, "pool_connections_max": 2, **settings},
        )
        shards = ShardMap(made.plan(), made)
        self._shards.append(shards)
        self.by_name[name] = Ownership("queue", shards, made, self.clock)
        return self.by_name[name]

    def held(self) -> dict[str, list[int]]:
        """Which shards each process takes for its own."""
        return {
            name: [shard.number for shard in self._shards[0] if one.owns(shard.number)]
            for name, one in self.by_name.items()
        }

    async def settle(self) -> None:
        """Every process looks, a few times round."""
        for _ in range(4):
            for one in self.by_name.values():
                await one.step()

    async def rows(self, sql: str = "SELECT owner, epoch FROM shard_owner") -> list[Any]:
        """What a query finds in each shard, by number."""
        found = []
        for address in self._database.addresses:
            if address.schema.startswith("queue_"):
                connection = await self._database.connect(address.schema)
                try:
                    found += await connection.fetch(sql)
                finally:
                    await connection.close()
        return found

    async def lapse(self, owner: str) -> None:
        """Let the leases of one process run out in the shards."""
        sql = f"UPDATE shard_owner SET expires_at = shard_now() WHERE owner = '{owner}'"
        await self.rows(sql)

    async def close(self) -> None:
        for one in self.by_name.values():
            await one.stop()
        for shards in self._shards:
            await shards.close()


@asynccontextmanager
async def owners_of(database: Database, redis_url: str | None) -> AsyncIterator[Owners]:
    """Owners on a database's queue shards; closed at the end."""
    owners = Owners(database, redis_url)
    try:
        yield owners
    finally:
        await owners.close()
