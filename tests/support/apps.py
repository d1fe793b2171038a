"""The services inside the test's own loop, on real ports, in front of real shards."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from shared.http.serve import guarded
from tests.support.databases import Database
from tests.support.ports import free_port

DAG_TOKEN = "the-dag-service-of-the-tests"
_START_TIMEOUT_S = 60.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Service:
    """A running service: its address, a client for it, its ASGI app and the database behind it."""

    url: str
    client: httpx.AsyncClient
    app: Any
    database: Database


@asynccontextmanager
async def queue_service(database: Database, redis_url: str, **settings: Any) -> AsyncIterator[Service]:
    """The queue service on a database's shards; keywords override its settings."""
    from services.queue.app import create_app
    from services.queue.settings import QueueSettings

    made = QueueSettings(
        **{
            "shards": database.queue_shards,
            "HEADGATE_REDIS_URL": redis_url,
            "HEADGATE_DAG_TOKEN": DAG_TOKEN,
            **settings,
        }
    )
    async with _served(create_app(made), database, settings.get("port")) as service:
        yield service


@asynccontextmanager
async def dag_service(
    database: Database, redis_url: str, queue_url: str, **settings: Any
) -> AsyncIterator[Service]:
    """The DAG service on a database's shards, in front of a queue service; keywords override its settings."""
    from services.dag.app import create_app
    from services.dag.settings import DagSettings

    made = DagSettings(
        **{
            "shards": database.dag_shards,
            "HEADGATE_REDIS_URL": redis_url,
            "HEADGATE_DAG_TOKEN": DAG_TOKEN,
            "HEADGATE_QUEUE_URL": queue_url,
            **settings,
        }
    )
    async with _served(create_app(made), database, settings.get("port")) as service:
        yield service


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to pytest."""
        yield


@asynccontextmanager
async def _served(app: Any, database: Database, port: int | None = None) -> AsyncIterator[Service]:
    port = port or free_port()
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        http=guarded(app.state.settings, app),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not server.started:
                assert not serving.done(), "the service did not start; its log says why"
                await asyncio.sleep(_POLL_S)
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=40.0) as client:
            yield Service(url, client, app, database)
    finally:
        server.should_exit = True
        await serving
