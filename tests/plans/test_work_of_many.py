"""What many items cost together is in proportion to how many they are, also within the functions' statements."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shared.postgres.session import PINNED
from shared.postgres.sql import load
from tests.plans.test_query_plans import nodes
from tests.support.databases import Databases

SQL = load(Path(__file__).resolve().parents[2] / "services" / "queue" / "store" / "sql")
FEW, MANY = 20, 400
TOPIC, ACKS = 1, 2

SCENE = """
INSERT INTO topic (namespace_id, name) VALUES (1, 'work'), (1, 'acks');
INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, lease_s,
    at_most_once, managed, remembered, payload)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 1, 0, 0, shard_now(), shard_now(), 60, false, false, false, '{}'
FROM generate_series(1, 400) AS n;
INSERT INTO parked SELECT id, 1, 1, 'disabled', false, shard_now() FROM item;
INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, lease_s,
    at_most_once, managed, remembered, payload, idempotency_key, ack_topic_id)
SELECT lpad(to_hex(4096 + n), 32, '0')::uuid, 1, 1, 0, 0, shard_now(), shard_now(), 60, false, false, true, '{}',
    'key-' || n, 2
FROM generate_series(1, 400) AS n;
INSERT INTO dedup SELECT 1, idempotency_key, id, '', shard_now() FROM item WHERE idempotency_key IS NOT NULL;
INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, claimed_at)
SELECT lpad(to_hex(1000 + n % 2), 32, '0')::uuid, shard_now() + interval '1 hour', 1, 1,
    array_agg(lpad(to_hex(4096 + n), 32, '0')::uuid ORDER BY n), shard_now()
FROM generate_series(1, 400) AS n GROUP BY n % 2;
"""
# Every statement within, with the rows that each part of its plan saw.
EXPLAINED = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_format = json;
SET auto_explain.log_level = notice;
SET client_min_messages = notice;
"""


@pytest.fixture
async def shard(databases: Databases) -> AsyncIterator[Any]:
    """A new shard with `MANY` disabled items, as a service sees it; its plans know of no rows yet."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn, server_settings={**PINNED, "search_path": "queue_000"})
    await connection.execute(SCENE)
    await connection.execute(EXPLAINED)
    yield connection
    await connection.close()
    await databases.drop(database)


def ids(count: int) -> list[uuid.UUID]:
    return [uuid.UUID(int=n) for n in range(1, count + 1)]


def offers(count: int) -> list[Any]:
    """One call that waits for half of them."""
    return [[TOPIC], [uuid.UUID(int=1 << 100)], [0.0], [count // 2], [None], 1 << 23]


def revive(count: int) -> tuple[str, list[Any]]:
    return SQL.revive.text, [ids(count), [1] * count, [None] * count, False, *offers(count)]


def revive_here(count: int) -> tuple[str, list[Any]]:
    inputs = ['{"a": 1}' if n % 2 else None for n in range(count)]
    return "SELECT * FROM revive_here($1, $2, $3, $4, $5, $6, $7, $8)", [ids(count), inputs, *offers(count)]


def ack(count: int) -> tuple[str, list[Any]]:
    tokens = [uuid.UUID(int=1000), uuid.UUID(int=1001)]
    leased = [uuid.UUID(int=4096 + n) for first in (2, 1) for n in range(first, count + 1, 2)]
    outputs = json.dumps({str(tokens[0]): {str(item): '{"a": 1}' for item in leased[: count // 2]}})
    _, *more = offers(count)
    return SQL.ack.text, [leased, tokens, [1], [count // 2, count], outputs, count + 1, 3, [ACKS], *more]


def emit_completions(count: int) -> tuple[str, list[Any]]:
    topics, acks, outcomes = [TOPIC] * count, [ACKS] * count, ["acked"] * count
    _, *more = offers(count)
    return (
        "SELECT * FROM emit_completions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        [ids(count), topics, acks, outcomes, [1] * count, *[[None] * count] * 3, [ACKS], *more],
    )


async def rows_seen(connection: Any, statement: str, args: list[Any]) -> tuple[int, int]:
    """How many rows it answers, and how many the parts of all plans saw together, or left out."""
    plans: list[str] = []

    def note(_connection: Any, message: Any) -> None:
        plans.append(message.message)

    connection.add_log_listener(note)
    transaction = connection.transaction()
    await transaction.start()
    answered = await connection.fetch(statement, *args)
    await transaction.rollback()
    await asyncio.sleep(0)  # the listener is told by the loop
    connection.remove_log_listener(note)
    seen = 0
    for plan in plans:
        for node in nodes(json.loads(plan[plan.index("{") :])["Plan"]):
            removed = node.get("Rows Removed by Join Filter", 0) + node.get("Rows Removed by Filter", 0)
            seen += round(node["Actual Loops"] * (node["Actual Rows"] + removed))
    return len(answered), seen


@pytest.mark.parametrize("call", [revive, revive_here, ack, emit_completions])
async def test_twenty_times_as_many_are_twenty_times_the_work(shard: Any, call: Any) -> None:
    """Not four hundred times: that is what two lists cost that are held against one another without an index."""
    await rows_seen(shard, *call(FEW))  # asyncpg asks for types, once
    few, work_of_few = await rows_seen(shard, *call(FEW))
    many, work_of_many = await rows_seen(shard, *call(MANY))
    assert (few, many) == ((1, 1) if call is ack else (FEW, MANY))
    assert work_of_few > 5 * FEW
    assert work_of_many < 1.5 * (MANY / FEW) * work_of_few
