"""One browser for the run; without a Chromium these tests say so and are passed over."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support import console
from tests.support.console import Site
from tests.support.databases import Database


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
