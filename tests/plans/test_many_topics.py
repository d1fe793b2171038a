"""What is asked of one namespace costs by what that one has: not its square, and not what others have."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shared.postgres.session import PINNED
from shared.postgres.sql import load
from tests.support.databases import Databases

SQL = load(Path(__file__).resolve().parents[2] / "services" / "queue" / "store" / "sql")
MANY = 12_000
FEW = 5
# Rows that a statement may touch per topic of the namespace, and per appended count of the shard.
ROWS_A_TOPIC = 32

# One namespace of many topics and one of few, all with totals and with counts that are not folded yet.
FILL = f"""
INSERT INTO namespace (name) VALUES ('large'), ('small');
INSERT INTO topic (namespace_id, name)
SELECT n.namespace_id, 'topic/' || lpad(i::text, 6, '0')
FROM namespace n, generate_series(1, {MANY}) AS i
WHERE n.name = 'large' OR (n.name = 'small' AND i <= {FEW});
INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead, bytes)
SELECT topic_id, 1, 0, 1, 0, 1, 30 FROM topic
ON CONFLICT (topic_id) DO UPDATE SET ready = 1, leased = 1, dead = 1, bytes = 30;
INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, 0, 10 FROM topic;
"""


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
async def filled(request: pytest.FixtureRequest, databases: Databases) -> AsyncIterator[Any]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn, server_settings={**PINNED, "search_path": "queue_000"})
    await connection.execute(FILL)
    if request.param == "analysed":
        await connection.execute("ANALYZE")
    yield connection
    await connection.close()
    await databases.drop(database)


@pytest.fixture
async def shard(filled: Any) -> AsyncIterator[Any]:
    """What a test changes is undone."""
    undone = filled.transaction()
    await undone.start()
    yield filled
    await undone.rollback()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def touched(node: dict[str, Any]) -> float:
    rows = sum(float(count) for name, count in node.items() if name.startswith("Rows Removed by"))
    return (rows + float(node["Actual Rows"])) * float(node["Actual Loops"])


async def rows_of(shard: Any, name: str, *values: str) -> float:
    """How many rows a statement's plan touches, given values as SQL."""
    block = getattr(SQL, name)
    types = [parameter.name for parameter in (await shard.prepare(block.text)).get_parameters()]
    listed = ", ".join(kind.removesuffix("[]") + "[]" * kind.endswith("[]") for kind in types)
    await shard.execute(f"PREPARE looked_at{f'({listed})' if types else ''} AS {block.text}")
    try:
        given = f"({', '.join(values)})" if values else ""
        found = await shard.fetchval(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE looked_at{given}")
    finally:
        await shard.execute("DEALLOCATE looked_at")
    return sum(map(touched, nodes(json.loads(found)[0]["Plan"])))


async def test_the_scope_of_an_operation_costs_by_the_topics_of_its_namespace(shard: Any) -> None:
    assert await rows_of(shard, "operation_scope", "'large'", "NULL") < MANY * ROWS_A_TOPIC
    await shard.execute("DELETE FROM stat_delta")
    assert await rows_of(shard, "operation_scope", "'small'", "NULL") < FEW * ROWS_A_TOPIC
    assert await rows_of(shard, "operation_scope", "'large'", "'topic/000007'") < ROWS_A_TOPIC


async def test_the_use_of_a_namespace_costs_by_its_topics(shard: Any) -> None:
    ids = {row["name"]: row["namespace_id"] for row in await shard.fetch("SELECT * FROM namespace")}
    assert await rows_of(shard, "usage", f"'{{{ids['large']}}}'") < MANY * ROWS_A_TOPIC
    await shard.execute("DELETE FROM stat_delta")
    assert await rows_of(shard, "usage", f"'{{{ids['small']}}}'") < FEW * ROWS_A_TOPIC


@pytest.mark.parametrize("namespace", ["large", "small"])
async def test_a_page_of_topics_costs_by_what_it_looks_at(shard: Any, namespace: str) -> None:
    """Whoever else has topics, and however many there are behind the page."""
    await shard.execute("DELETE FROM stat_delta")
    look = min(MANY if namespace == "large" else FEW, 200)
    assert await rows_of(shard, "topics_page", f"'{namespace}'", "''", "101", "200") < look * ROWS_A_TOPIC


async def test_what_was_appended_is_compared_with_a_page_of_topics_by_halves(shard: Any) -> None:
    appended = await shard.fetchval("SELECT count(*) FROM stat_delta")
    assert await rows_of(shard, "topics_page", "'large'", "'topic/005000'", "1001", "5000") < (
        5_000 * ROWS_A_TOPIC + 2 * appended
    )


async def test_a_page_of_topics_has_their_exact_counts(shard: Any) -> None:
    found = await shard.fetch(SQL.topics_page.text, "large", "topic/000041", 3, 100)
    assert [row["name"] for row in found] == ["topic/000042", "topic/000043", "topic/000044"]
    assert [found[0][name] for name in ("ready", "delayed", "leased", "disabled", "dead")] == [2, 0, 1, 0, 1]
    assert found[0]["last_name"] == "topic/000141"
    [row] = await shard.fetch(SQL.topics_page.text, "large", "topic/012000", 3, 100)
    assert (row["name"], row["last_name"]) == (None, None)


async def test_what_metrics_and_health_are_told_of_is_few_rows(shard: Any) -> None:
    rows = await shard.fetch(SQL.most_counts.text, 10)
    assert len(rows) == 11
    topics = await shard.fetchval("SELECT count(*) FROM topic")
    assert sum(row["ready"] for row in rows) == 2 * topics
    assert len(await shard.fetch(SQL.shard_counts.text)) == 1
    assert await rows_of(shard, "most_counts", "10") < topics * ROWS_A_TOPIC
    assert await rows_of(shard, "shard_counts") < topics * ROWS_A_TOPIC
