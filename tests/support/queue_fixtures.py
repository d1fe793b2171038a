"""Fixtures around `queue_host`: one shared process for most tests, one of its own where a test needs it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Databases
from tests.support.queue_host import Api, QueueHost, queue_host


@pytest.fixture(scope="session")
async def host(databases: Databases) -> AsyncIterator[QueueHost]:
    """A queue process on three shards, shared by the run; tests keep to namespaces of their own."""
    database = await databases.create(queue_shards=3, dag_shards=1)
    async with queue_host(database) as made:
        yield made
    await databases.drop(database)


@pytest.fixture
async def api(host: QueueHost) -> AsyncIterator[Api]:
    """A fresh namespace on `host`; the shards' clock is put right afterwards."""
    yield Api(host)
    await host.clock.reset()


@pytest.fixture
async def own_host(databases: Databases) -> AsyncIterator[QueueHost]:
    """A queue process on two shards that no other test sees."""
    database = await databases.create(queue_shards=2, dag_shards=1)
    async with queue_host(database) as made:
        yield made
    await databases.drop(database)


@pytest.fixture
async def own_api(own_host: QueueHost) -> Api:
    """A namespace on `own_host`."""
    return Api(own_host)


__all__ = ["api", "host", "own_api", "own_host"]
