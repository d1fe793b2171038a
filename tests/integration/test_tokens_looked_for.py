"""The tokens file is looked for while nobody calls: it is known when it went."""

import asyncio
from pathlib import Path

import pytest

from shared.http.access import make_token
from tests.support.apps import dag_service, queue_service
from tests.support.databases import Database


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_a_file_that_goes_while_nobody_calls_is_missed(
    database: Database, redis_url: str, tmp_path: Path, service: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(make_token(["*"], ["ops"], None)[1])
    given = {"HEADGATE_TOKENS_FILE": file, "HEADGATE_TOKENS_GRACE_S": 0}
    made = (
        queue_service(database, redis_url, **given)
        if service == "queue"
        else dag_service(database, redis_url, "http://127.0.0.1:1", **given)
    )
    async with made as running:
        tokens = running.app.state.access._tokens
        assert tokens._tokens
        file.unlink()
        async with asyncio.timeout(20):
            while tokens._tokens:
                await asyncio.sleep(0.02)
