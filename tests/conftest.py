"""Fixtures for every tier: nothing starts before a test asks for it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from services.local.postgres import VOLATILE
from services.local.settings import LocalSettings
from services.local.stack import Stack
from tests.support import apps, forked, servers
from tests.support.apps import Service
from tests.support.bytecode import keep_compiled
from tests.support.databases import Database, Databases
from tests.support.memory_dir import use_memory
from tests.support.ports import free_port
from tests.support.rooms import pytest_terminal_summary
from tests.support.seeds import pytest_configure, pytest_report_header
from tests.support.workers import (
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_runtest_teardown,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

use_memory()
keep_compiled()


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Processes with code of ours begin without imports."""
    with forked.forking():
        yield


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test whose processes start as those of a user do."""
    monkeypatch.setattr(forked.Popen, "zygote", None)


@pytest.fixture(scope="session")
async def postgres_dsn() -> AsyncIterator[str]:
    """One Postgres for the whole run."""
    async with servers.postgres() as dsn:
        yield dsn


@pytest.fixture(scope="session")
async def valkey_url() -> AsyncIterator[str]:
    """One Valkey for the whole run."""
    async with servers.valkey() as url:
        yield url


@pytest.fixture(scope="session")
async def databases(postgres_dsn: str) -> AsyncIterator[Databases]:
    """Makes fresh migrated databases: `await databases.create(queue_shards=2, dag_shards=1)`."""
    made = Databases(postgres_dsn)
    yield made
    await made.drop_templates()


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """A fresh database for this test, with 4 queue and 2 dag shards."""
    made = await databases.create()
    yield made
    await databases.drop(made)


@pytest.fixture(scope="session")
def redis_url(valkey_url: str) -> str:
    """The run's Valkey. It holds hints only, so tests share it."""
    return f"{valkey_url}/0"


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
