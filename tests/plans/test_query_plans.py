"""The hot statements run on their indexes, with the pinned settings: on a new shard, a drained and a full one."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shared.postgres.session import PINNED
from shared.postgres.sql import load
from tests.support.databases import Database, Databases
from tests.support.queue_host import AT_ONCE, Api, queue_host

SQL = load(Path(__file__).resolve().parents[2] / "services" / "queue" / "store" / "sql")
BIG = {"item", "ready", "deferred", "lease", "parked", "ended", "ended_old", "attempt", "dedup"}

# What each statement reads, and through which index: (table, index).
HOT: dict[str, set[tuple[str, str]]] = {
    "enqueue": set(),
    "enqueue_plain": set(),
    "enqueue_named": set(),
    "peek": {("ready", "ready_order")},
    "peek_many": {("ready", "ready_order")},
    "claim": {("item", "item_pkey"), ("ready", "ready_order")},
    "ack": {("lease", "lease_token"), ("item", "item_pkey")},
    "revive": {("parked", "parked_pkey"), ("item", "item_pkey")},
    "promote": {("deferred", "deferred_due"), ("item", "item_pkey")},
    "take_expired": {("lease", "lease_expiry")},
    "lock_leases": {("lease", "lease_token")},
    "leave_leases": {("lease", "lease_token")},
    "lock_items": {("item", "item_pkey")},
    "leave_queues": {("item", "item_pkey"), ("ready", "ready_order"), ("deferred", "deferred_due")},
    "leave_past_ttl": {("item", "item_pkey"), ("ready", "ready_order"), ("deferred", "deferred_due")},
    "requeue": {("item", "item_pkey")},
    "bury": {("item", "item_pkey")},
    "remove": {("item", "item_pkey")},
    "known": {("item", "item_pkey"), ("ended", "ended_pkey")},
    "states": {("item", "item_pkey"), ("parked", "parked_pkey")},
    "past_ttl": {("item", "item_expiry")},
    "next_due": {
        ("item", "item_expiry"),
        ("deferred", "deferred_due"),
        ("lease", "lease_expiry"),
        ("operation", "operation_running"),
        ("operation", "operation_unplaced"),
    },
    "drop_keys": {("dedup", "dedup_until")},
    "old_dead": {("parked", "parked_age")},
    "notices": {
        ("namespace", "namespace_limited"),
        ("topic", "topic_min_share"),
        ("lane_clock", "lane_clock_pkey"),
        ("cancelled_lease", "cancelled_lease_at"),
    },
    "lane_heads": {("ready", "ready_order")},
    "adopt_strays": {("ready", "ready_order"), ("item", "item_pkey")},
    "look_by_id": {("item", "item_pkey")},
    "look_at_ready": {("ready", "ready_order"), ("item", "item_pkey")},
    "look_at_dead": {("parked", "parked_dead"), ("item", "item_pkey")},
    "take": {
        ("item", "item_pkey"),
        ("ready", "ready_order"),
        ("deferred", "deferred_due"),
        ("parked", "parked_pkey"),
    },
    "redrive": {("parked", "parked_pkey"), ("item", "item_pkey")},
    "page": {("item", "item_pkey")},
    "item": {("item", "item_pkey")},
    "standing": {
        ("item", "item_pkey"),
        ("ready", "ready_order"),
        ("deferred", "deferred_due"),
        ("parked", "parked_pkey"),
    },
    "attempts_of": {("attempt", "attempt_item")},
    "attempts_of_many": {("attempt", "attempt_item")},
    "drop_attempts": {("attempt", "attempt_age")},
    "leases_of": {("lease", "lease_expiry")},
    "page_end": {("item", "item_pkey")},
    "take_keys": set(),
    "lock_keys": {("dedup", "dedup_pkey")},
    "hold_dead": {("parked", "parked_pkey"), ("item", "item_pkey")},
    "without_keys": {("dedup", "dedup_pkey")},
    "key_holders": {("dedup", "dedup_pkey")},
    "oldest_ready": {("ready", "ready_order")},
    "ready_topics": {("ready", "ready_order")},
    "place_tombstones": set(),
    "bury_tombstones": {("item", "item_pkey")},
}

FILL = """
INSERT INTO topic (namespace_id, name) SELECT 1, 't' || n FROM generate_series(1, 5) AS n;
INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, expires_at, lease_s,
    at_most_once, managed, remembered, payload)
SELECT gen_random_uuid(), 1, 1 + n % 5, n % 3, 0, shard_now(), shard_now(),
    CASE WHEN n % 10 = 0 THEN shard_now() + make_interval(secs => n) END, 60, false, false, false, '{}'
FROM generate_series(1, 20000) AS n;
INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM item WHERE topic_id = 1;
INSERT INTO deferred SELECT deliver_at, id FROM item WHERE topic_id = 2;
INSERT INTO parked SELECT id, 1, 3, CASE WHEN priority = 0 THEN 'dead' ELSE 'disabled' END, false, shard_now()
FROM item WHERE topic_id = 3;
INSERT INTO lease SELECT gen_random_uuid(), shard_now(), 1, 4, ARRAY[id] FROM item WHERE topic_id = 4;
INSERT INTO ended SELECT gen_random_uuid(), 1, 'acked' FROM generate_series(1, 10000);
INSERT INTO dedup SELECT 1, n::text, gen_random_uuid(), '', shard_now() FROM generate_series(1, 5000) AS n;
-- The shard is as old as the template it was copied from; a rotation would build an index anew, which is a scan.
UPDATE ended_rotation SET rotated_at = shard_now();
ANALYZE;
"""


@pytest.fixture(scope="module", params=["fresh", "empty", "full"])
async def shard(request: pytest.FixtureRequest, databases: Databases) -> AsyncIterator[Any]:
    """A connection as the services open them, to a new shard, one known to be empty, or one with 20,000 items."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn, server_settings={**PINNED, "search_path": "queue_000"})
    await connection.execute({"fresh": "SELECT 1", "empty": "ANALYZE", "full": FILL}[request.param])
    yield connection
    await connection.close()
    await databases.drop(database)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def explain(connection: Any, name: str) -> list[dict[str, Any]]:
    """The nodes of a statement's generic plan."""
    block = getattr(SQL, name)
    types = [parameter.name for parameter in (await connection.prepare(block.text)).get_parameters()]
    # A type's name in the catalog, as `PREPARE` reads it.
    listed = ", ".join(kind.removesuffix("[]") + "[]" * kind.endswith("[]") for kind in types)
    await connection.execute(f"PREPARE looked_at{f'({listed})' if types else ''} AS {block.text}")
    try:
        given = f"({', '.join('NULL' for _ in types)})" if types else ""
        found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE looked_at{given}")
    finally:
        await connection.execute("DEALLOCATE looked_at")
    return list(nodes(json.loads(found)[0]["Plan"]))


async def test_a_hot_statement_runs_on_its_index(shard: Any) -> None:
    faults = []
    for name, wanted in HOT.items():
        plan = await explain(shard, name)

        indexed = {n["Index Name"] for n in plan if "Index Name" in n}
        faults += [f"{name} does not use {index}" for _, index in wanted if index not in indexed]
        faults += [
            f"{name} reads {n['Relation Name']}"
            for n in plan
            if n["Node Type"] == "Seq Scan" and n["Relation Name"] in BIG
        ]
        joins = [n for n in plan if n["Node Type"] in ("Hash Join", "Merge Join", "Bitmap Heap Scan")]
        faults += [f"{name} has a {n['Node Type']}" for n in joins]
    assert faults == []


async def test_an_index_is_searched_not_read_from_end_to_end(shard: Any) -> None:
    """An index scan without a condition is a table scan by another name."""
    whole = [
        (name, n["Relation Name"], n.get("Index Name"))
        for name in HOT
        for n in await explain(shard, name)
        if n["Node Type"] in ("Index Scan", "Index Only Scan")
        and "Index Cond" not in n
        and n.get("Relation Name") in BIG
    ]
    assert whole == []


@pytest.mark.parametrize("name", ["peek", "promote", "take_expired", "past_ttl"])
async def test_the_head_of_a_table_is_found_without_sorting_it(shard: Any, name: str) -> None:
    limited = [n for n in await explain(shard, name) if n["Node Type"] == "Limit"]
    assert limited
    sorts = [n for limit in limited for n in nodes(limit) if n["Node Type"] == "Sort"]
    assert not [n for sort in sorts for n in nodes(sort) if "Index" in n["Node Type"]]


async def test_a_whole_life_reads_no_table_from_end_to_end(databases: Databases) -> None:
    """Also inside the functions, whose plans EXPLAIN does not show."""
    database: Database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await database.connect("queue_000")
    try:
        await connection.execute(FILL)
        async with queue_host(database) as host:
            before = await scans(connection)
            await live(Api(host, "default"))
        assert await scans(connection) == before
    finally:
        await connection.close()
        await databases.drop(database)


async def scans(connection: Any) -> dict[str, int]:
    rows = await connection.fetch(
        "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'queue_000' AND relname = ANY ($1)",
        sorted(BIG),
    )
    return {row["relname"]: row["seq_scan"] for row in rows}


async def live(api: Api) -> None:
    ids = [api.new_id(0) for _ in range(6)]
    given: dict[str, Any] = {
        "topic": "life",
        "ack_topic": "done",
        "max_attempts": 2,
        "ttl_s": 100,
        "backoff": AT_ONCE,
    }
    await api.enqueue(*({**given, "id": item_id} for item_id in ids[:3]))
    await api.enqueue({**given, "idempotency_key": "k"}, {**given, "disabled": True, "id": ids[3]}, given)
    await api.enqueue({**given, "id": ids[0]}, {**given, "delay_s": 5})
    await api.revive(ids[3])
    await api.cancel(ids[1], ids[4])
    await api.host.reap()
    held = await api.dequeue("life", 2, lease_s=2)
    await api.extend(held[0], lease_s=30)
    await api.nack(held[1])
    await api.ack(held[0], output=1)
    await api.ack(held[0])
    await api.host.pass_time(6)
    for _ in range(2):
        await api.nack(*await api.dequeue("life", 10))
    await api.item(ids[2])
    await api.post("topics/redrive", {"topic": "life"})
    await api.post("operations", {"kind": "cancel", "filter": {"priority_min": 100}})
    await api.get("dead")
    await api.completions("done")
    await api.dequeue("life", 1)
    await api.host.pass_time(200)
    await api.host.retain()
    await api.host.fold()


async def test_health_counts_the_dead_rows_of_this_shard_alone(shard: Any) -> None:
    """The views of statistics put together those of every table of the database, and only then leave most out."""
    read = {n["Relation Name"] for n in await explain(shard, "server_health") if "Relation Name" in n}
    assert read == {"pg_namespace", "pg_class", "pg_database"}
    undone = shard.transaction()
    await undone.start()
    await shard.execute("INSERT INTO ended SELECT gen_random_uuid(), 1, 'acked' FROM generate_series(1, 7)")
    await undone.rollback()
    await shard.execute("SELECT pg_stat_force_next_flush()")
    async with shard.transaction():  # statistics stay as they are in one
        found = await shard.fetchrow(SQL.server_health.text)
        told = await shard.fetchval(
            "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE schemaname = current_schema()"
        )
    assert found["dead_tuples"] == told >= 7
    assert await shard.fetchval(SQL.shard_bytes.text) > 0
