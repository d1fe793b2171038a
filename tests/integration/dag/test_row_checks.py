"""The database refuses rows that no correct statement writes: a bug there must not become data."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.support.databases import Databases

ROWS = """
INSERT INTO dag (id, namespace, open, held, on_failure) VALUES (gen_random_uuid(), 'ns', false, false, 'continue');
INSERT INTO node (no, dag_no, key, item_id, state, topic, trigger, pass_outputs, enqueued, fingerprint,
    up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed)
VALUES (1 << 22, 1, 'a', gen_random_uuid(), 'blocked', 't', 'all_succeeded', false, true, '',
    0, 0, 0, 0, 0, 0, false);
INSERT INTO outbox (node_no, generation, action, item_id, created_at, due_at)
VALUES (1 << 22, 1, 'enqueue', gen_random_uuid(), shard_now(), shard_now());
"""
NODE_COUNTS = ("up_left", "up_ok", "up_failed", "up_skipped", "up_cancelled", "ext_left")
DAG_COUNTS = ("blocked", "released", "succeeded", "failed", "skipped", "cancelled")


@pytest.fixture(scope="module")
async def shard(databases: Databases) -> AsyncIterator[Any]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn, server_settings={"search_path": "dag_000"})
    await connection.execute(ROWS)
    yield connection
    await connection.close()
    await databases.drop(database)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        *(("node", f"{count} = {count} - 1") for count in NODE_COUNTS),
        *(("dag", f"{count} = {count} - 1") for count in DAG_COUNTS),
        *((table, "state = 'lost'") for table in ("node", "dag")),
        ("outbox", "action = 'lose'"),
    ],
)
async def test_a_count_below_zero_or_an_unknown_word_is_refused(shard: Any, table: str, change: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await shard.execute(f"UPDATE {table} SET {change}")
