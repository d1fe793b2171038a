"""Fixtures for every tier: nothing starts before a test asks for it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Database, Databases
from tests.support.servers import ServerAddresses, Servers


@pytest.fixture(scope="session")
async def servers() -> AsyncIterator[ServerAddresses]:
    """One Postgres (without fsync) and one Valkey for the whole run."""
    async with Servers() as addresses:
        yield addresses


@pytest.fixture(scope="session")
async def databases(servers: ServerAddresses) -> AsyncIterator[Databases]:
    """Makes fresh migrated databases: `await databases.create(queue_shards=2, dag_shards=1)`."""
    made = Databases(servers.postgres_dsn)
    yield made
    await made.drop_templates()


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """A fresh database for this test, with 4 queue and 2 dag shards."""
    made = await databases.create()
    yield made
    await databases.drop(made)


@pytest.fixture
def redis_url(servers: ServerAddresses) -> str:
    """The run's Valkey. It holds hints only, so tests share it."""
    return f"{servers.redis_url}/0"
