"""Every row is looked up by the first column of an index, also by a plan that was made while tables were small.

Plans are kept. To an empty table all indexes cost the same, whichever column is asked for; one that is asked for
its last column is read from end to end once the table has grown, and so is a table that a join begins with.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from audit.reading import SQL as AUDIT
from services.dag.store.dags import SQL as DAG
from shared.postgres.session import PINNED
from shared.postgres.sql import Statement, load
from tests.support.databases import Databases

ROOT = Path(__file__).resolve().parents[2]
QUEUE = load(ROOT / "services" / "queue" / "store" / "sql")
OF_DAGS = {statement.name for statement in load(ROOT / "audit" / "sql" / "dag")}
STATEMENTS = {
    "dag": list(DAG),
    "queue": list(QUEUE),
    "audit of dag": [statement for statement in AUDIT if statement.name in OF_DAGS],
    "audit of queue": [statement for statement in AUDIT if statement.name not in OF_DAGS],
}
FIRST_COLUMNS = """
SELECT index.relname, coalesce(attname, '') FROM pg_index
JOIN pg_class AS index ON index.oid = indexrelid AND index.relnamespace = current_schema()::regnamespace
LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
"""

# Read from end to end on purpose. Tables with a row for the shard or for few others, those that hold only what is
# on its way, and indexes of few rows of a table.
SHORT = {
    *("shard", "shard_owner", "retention_mark", "ended_rotation", "quota", "tally", "stat_delta", "lane_clock"),
    *("adding", "spread", "scan", "reopening", "waiting_slot", "worker"),
}
FEW_OF_MANY = {
    *("dag_live", "topic_paused", "topic_limits", "topic_min_share", "topic_retiring", "topic_gate_throttled"),
    *("namespace_limited", "operation_running"),
}
# Of statements that are about a whole table, or as much of it as they are allowed.
WHOLE = {
    "count_outbox": {"outbox"},
    # For tests alone.
    "nothing_runs": {"outbox"},
    "skip_time": {"timer"},
    "most_counts": {"topic_stat"},
    "shard_counts": {"topic_stat"},
    # The audit's.
    "old_outbox": {"outbox"},
    "leased_ids": {"lease"},
    "empty_places": {"ready", "deferred", "parked"},
    "wrong_counts": {"ready", "deferred", "parked", "lease", "item", "topic_stat"},
    "waiting_completions": {"item"},
    # Its repairs of what is in the wrong place, of which nothing else says where that is.
    "place_item": {"lease", "deferred"},
    "drop_ready": {"ready"},
    "drop_deferred": {"deferred"},
}
FEW = {
    "dag_000": """
        INSERT INTO dag (id, namespace, open, held, on_failure)
        VALUES (gen_random_uuid(), 'ns', false, false, 'continue');
        INSERT INTO node (no, dag_no, key, item_id, state, topic, trigger, pass_outputs, enqueued, fingerprint,
            up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed)
        SELECT (dag.no << 22) + n, dag.no, 'k' || n, gen_random_uuid(), 'blocked', 't', 'all_succeeded', false,
            true, '', 0, 0, 0, 0, 0, 0, false FROM dag, generate_series(0, 3) AS n;
        INSERT INTO edge SELECT no, no + 1, false FROM node;
    """,
    "queue_000": """
        INSERT INTO namespace (name) VALUES ('ns');
        INSERT INTO topic (namespace_id, name) SELECT namespace_id, 't' FROM namespace WHERE name = 'ns';
        INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, lease_s,
            at_most_once, managed, remembered, payload)
        SELECT gen_random_uuid(), namespace_id, topic_id, 0, 0, shard_now(), shard_now(), 60, false, false, false,
            '{}'
        FROM topic, generate_series(1, 3) WHERE name = 't';
        INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM item;
    """,
}


@pytest.fixture(scope="module", params=["never analysed", "analysed while empty", "analysed while small"])
async def shards(databases: Databases, request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
    """Connections with the services' settings, by schema."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    made = {
        schema: await asyncpg.connect(database.dsn, server_settings={**PINNED, "search_path": schema})
        for schema in FEW
    }
    for schema, connection in made.items():
        if request.param == "analysed while small":
            await connection.execute(FEW[schema])
        if request.param != "never analysed":
            await connection.execute("VACUUM ANALYZE")
    yield made
    for connection in made.values():
        await connection.close()
    await databases.drop(database)


def steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from steps(inner)


async def plan_of(connection: Any, statement: Statement) -> Iterator[dict[str, Any]]:
    """The steps of a statement's generic plan; none of one that has no plan."""
    parameters = (await connection.prepare(statement.text)).get_parameters()
    types = [kind.name.removesuffix("[]") + "[]" * kind.name.endswith("[]") for kind in parameters]
    taken, given = (f"({', '.join(types)})", f"({', '.join('NULL' for _ in types)})") if types else ("", "")
    try:
        await connection.execute(f"PREPARE tested{taken} AS {statement.text}")
    except asyncpg.PostgresSyntaxError:
        return iter(())  # LOCK, TRUNCATE
    try:
        found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE tested{given}")
        return steps(json.loads(found)[0]["Plan"])
    finally:
        await connection.execute("DEALLOCATE tested")


@pytest.mark.parametrize("kind", STATEMENTS)
async def test_rows_are_looked_up_by_the_first_column_of_an_index(shards: dict[str, Any], kind: str) -> None:
    connection = shards["dag_000" if "dag" in kind else "queue_000"]
    first = dict(await connection.fetch(FIRST_COLUMNS))
    whole = []
    for statement in STATEMENTS[kind]:
        for step in await plan_of(connection, statement):
            table, index = step.get("Relation Name"), step.get("Index Name")
            if table is None or step["Node Type"] not in ("Seq Scan", "Index Scan", "Index Only Scan"):
                continue
            if index in first and re.search(rf"\b{first[index]}\b", step.get("Index Cond", "")):
                continue
            if (
                table.startswith("pg_")
                or index in FEW_OF_MANY
                or table in SHORT | WHOLE.get(statement.name, set())
            ):
                continue
            whole.append((statement.name, index or table, step.get("Index Cond")))
    assert whole == []
