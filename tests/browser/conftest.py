"""One browser for the run; without a Chromium these tests say so and are passed over."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.support import console
from tests.support.console import Site
from tests.support.databases import Database
from tests.support.shard_world import in_process


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    if console.chromium() is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one with HEADGATE_CHROMIUM")
    async with console.browser() as found:
        yield found


@pytest.fixture
async def site(database: Database, redis_url: str) -> AsyncIterator[Site]:
    async with console.site(database, redis_url) as made:
        yield made


@pytest.fixture
async def of_queue(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a queue service whose pages may change the map of its shards."""
    file = tmp_path / "queue.json"
    monkeypatch.setenv("HEADGATE_QUEUE_SHARDS", database.queue_shards)
    code, said = await in_process("--map", str(file), "init", "--yes")
    assert code == 0, said
    monkeypatch.delenv("HEADGATE_QUEUE_SHARDS")
    return {"shards": "", "shards_file": file, "shard_commands": True}
