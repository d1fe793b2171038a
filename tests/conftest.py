"""Fixtures for every tier: nothing starts before a test asks for it."""

from collections.abc import AsyncIterator

import pytest

from services.local.postgres import VOLATILE
from services.local.settings import LocalSettings
from services.local.stack import Stack
from tests.support import apps
from tests.support.apps import Service
from tests.support.bytecode import keep_compiled
from tests.support.databases import Database, Databases
from tests.support.memory_dir import use_memory
from tests.support.ports import free_port
from tests.support.seeds import pytest_configure, pytest_report_header
from tests.support.servers import ServerAddresses, Servers
from tests.support.workers import (
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

use_memory()
keep_compiled()


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


@pytest.fixture
async def queue_service(database: Database, redis_url: str) -> AsyncIterator[Service]:
    """The queue service in this process, on the test's own shards; `.client` is bound to it.

    For other settings use `tests.support.apps.queue_service` itself.
    """
    async with apps.queue_service(database, redis_url) as service:
        yield service


@pytest.fixture
async def dag_service(queue_service: Service, redis_url: str) -> AsyncIterator[Service]:
    """The DAG service in this process, in front of `queue_service`."""
    async with apps.dag_service(queue_service.database, redis_url, queue_service.url) as service:
        yield service


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Both services as processes, on servers of their own, shared by the whole run.

    Tests use topics or namespaces of their own. Who kills processes starts a `Stack` or a `Launcher` for itself.
    """
    settings = LocalSettings(
        data_dir=tmp_path_factory.mktemp("stack"),
        queue_port=free_port(),
        dag_port=free_port(),
        postgres_port=free_port(),
        redis_port=free_port(),
        postgres_options=VOLATILE,
    )
    async with Stack(settings) as running:
        yield running
