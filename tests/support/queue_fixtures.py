"""Fixtures around `queue_host`: one shared process for most tests, one of its own where a test needs it."""

from collections.abc import AsyncIterator

import pytest

from services.queue.dispatch import key_refill
from tests.support.databases import Databases
from tests.support.queue_host import Api, QueueHost, queue_host

# A look that is late only because the machine is busy must not be passed over.
PATIENCE_S = 30.0


@pytest.fixture(scope="session")
async def host(databases: Databases) -> AsyncIterator[QueueHost]:
    """A queue process on three shards, shared by the run; tests keep to namespaces of their own."""
    database = await databases.create(queue_shards=3, dag_shards=1)
    async with queue_host(database) as made:
        yield made
    await databases.drop(database)


@pytest.fixture
async def api(host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A fresh namespace on `host`; the shards' clock is put right afterwards."""
    monkeypatch.setattr(key_refill, "PEEK_S_MAX", PATIENCE_S)
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
async def own_api(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A namespace on `own_host`."""
    monkeypatch.setattr(key_refill, "PEEK_S_MAX", PATIENCE_S)
    return Api(own_host)


__all__ = ["api", "host", "own_api", "own_host"]
