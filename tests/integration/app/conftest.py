"""A worker of the tests' app, in the test's own loop, on the shared stack."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headgate import App, AppWorker, Client, FileStore
from services.local.stack import Stack
from tests.support import media as media_module


@pytest.fixture
def media(stack: Stack, tmp_path: Path) -> Iterator[ModuleType]:
    """The functions, as of a namespace of their own."""
    app: App = media_module.app
    app.namespace = f"media-{secrets.token_hex(4)}"
    app._client = Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=app.namespace)
    app.store = FileStore(tmp_path / "store")
    yield media_module
    app.close()


@pytest.fixture
async def worker(media: ModuleType) -> AsyncIterator[AppWorker]:
    """A worker of them, at work."""
    worker = media.app.worker(drain_s=5, wait_s=5)
    working = asyncio.create_task(worker.run(signals=False))
    yield worker
    worker.stop()
    worker.stop()
    await working
