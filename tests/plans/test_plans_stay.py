"""Autovacuum voids the plans of every connection: no table of a shard may be due for nothing."""

import asyncpg
import pytest

from tests.support.databases import Databases

CHANGES_MIN = 1_000_000
# By default 50 dead or 1,000 inserted rows are a reason. These are the tables in the plans of the hot statements.
HOT = {
    "queue_000": {"item", "ready", "deferred", "parked", "lease", "dedup", "stat_delta"},
    "dag_000": {"dag", "node", "node_spec", "edge", "change", "outbox", "adding", "tally"},
}
OPTIONS = """
SELECT relname, coalesce(reloptions, '{}') AS options FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'
"""


@pytest.mark.parametrize("schema", sorted(HOT))
async def test_few_changes_or_inserts_are_no_reason_to_plan_anew(databases: Databases, schema: str) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn)
    try:
        rows = await connection.fetch(OPTIONS, schema)
    finally:
        await connection.close()
        await databases.drop(database)
    tables = {row["relname"]: dict(option.split("=") for option in row["options"]) for row in rows}
    assert tables.keys() >= HOT[schema]
    for name, options in tables.items():
        if options.get("autovacuum_enabled") == "false":
            continue
        # A new table: say in its migration when it is to be analysed (ADR 20).
        assert int(options.get("autovacuum_analyze_threshold", 0)) >= CHANGES_MIN, name
        if name in HOT[schema]:
            assert int(options.get("autovacuum_vacuum_threshold", 0)) >= 2_000, name
            inserts = int(options.get("autovacuum_vacuum_insert_threshold", 0))
            assert inserts == -1 or inserts >= 100_000, name
