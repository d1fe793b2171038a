"""The DAG service's statements look rows up by index, whatever the statistics say: never analysed, analysed
while empty, or full. A plan is made once per connection and kept, so one bad guess would stay."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from services.dag.store.archive import everywhere
from services.dag.store.dags import SQL
from shared.postgres.session import PINNED
from shared.postgres.sql import Statement
from tests.support.databases import Databases

TABLES = (
    "dag",
    "node",
    "node_spec",
    "edge",
    "external",
    "outbox",
    "adding",
    "spread",
    "scan",
    "expansion",
    "cleanup",
)
TABLES += ("kept", "kept_node", "kept_node_spec", "kept_edge", "kept_external", "change", "kept_change")
# Statements that walk a table from one end on purpose, and the tables that are empty in the steady state.
WALKS = {
    "count_outbox": {"outbox"},
    # For tests alone.
    "nothing_runs": {"outbox", "adding", "dag"},
    "claim_stopped_adds": {"adding"},
    "walks": {"spread", "scan", "reopening"},
    "poll_duties": {"adding", "spread", "scan"},
    "health": {"dag"},
    "fold_tally": set(),
    "count_tally": set(),
    "both_places": set(),
}
# What an index must be entered by, where a part of it would find far more than is wanted.
WHOLE = {
    "namespace_use": ("namespace", "state"),
    "changes_after": ("dag_no", "last_event"),
    "heads": ("(id =",),
    "get_dags": ("(id =",),
    "expire_externals": ("dag_no", "node_key", "name ="),
    "overdue_externals": ("deadline_at",),
    "overdue_dags": ("deadline_at",),
    "edges_page": ("ROW(up, down) >", "up <="),
    "nodes_page": ("no >", "no <="),
    "nodes_page_by_state": ("no >", "no <="),
    "graph_nodes": ("no >", "no <="),
    "frontier_page": ("no >", "no <="),
    "chain_nodes": ("no >", "no <="),
    "nodes_between": ("no >=", "no <="),
    "block_waiting": ("no >=", "no <="),
    "retry_roots": ("no >=", "no <="),
    "cleanup_page": ("dag_no =", "node_no >"),
    "adding_of": ("first_no >=", "first_no <"),
}
FILL = """
INSERT INTO dag (id, namespace, open, held, on_failure)
SELECT gen_random_uuid(), 'ns', false, false, 'continue' FROM generate_series(1, 5);
INSERT INTO node (no, dag_no, key, item_id, state, topic, trigger, pass_outputs, enqueued, fingerprint,
    up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed)
SELECT (d.no << 22) + n, d.no, 'k' || n, gen_random_uuid(), 'blocked', 't', 'all_succeeded', false, true, '',
    0, 0, 0, 0, 0, 0, false
FROM dag d, generate_series(0, 2999) AS n;
INSERT INTO node_spec SELECT no, '{}' FROM node;
INSERT INTO edge SELECT no, no + s, false FROM node, generate_series(1, 3) AS s;
INSERT INTO kept_node SELECT no + (100 << 22), dag_no + 100, key, item_id, state, generation, topic, trigger,
    pass_outputs, enqueued, by_call, fingerprint, 0, 0, 0, 0, 0, 0, false FROM node;
INSERT INTO kept_node_spec SELECT no, '{}' FROM kept_node;
INSERT INTO kept_edge SELECT no, no + s, true FROM kept_node, generate_series(1, 3) AS s;
INSERT INTO kept SELECT no, namespace, shard_now(), 'kept', shard_now() FROM dag;
INSERT INTO expansion SELECT no, no + 1 FROM node;
INSERT INTO cleanup SELECT dag_no, no, no + 1, no % 7 FROM node;
INSERT INTO change SELECT d.no, n, shard_now(), n || ':succeeded' FROM dag d, generate_series(1, 3000) AS n;
INSERT INTO kept_change SELECT dag_no + 100, last_event, at, nodes FROM change;
INSERT INTO external (dag_no, node_key, name, declared, deadline_at)
SELECT dag_no, key, 'x', true, CASE WHEN no % 3 = 0 THEN shard_now() + interval '1 hour' END FROM node;
INSERT INTO dag (id, namespace, open, held, on_failure, state, finished_at)
SELECT gen_random_uuid(), 'ns', false, false, 'continue', 'succeeded', shard_now() FROM generate_series(1, 3000);
INSERT INTO outbox SELECT no, 1, 'revive', item_id, NULL, shard_now(), shard_now(), 0 FROM node LIMIT 2000;
"""


@pytest.fixture(scope="module", params=["never analysed", "analysed while empty", "full"])
async def shard(databases: Databases, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A connection with the services' settings to a shard with these statistics."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    connection = await asyncpg.connect(database.dsn, server_settings={**PINNED, "search_path": "dag_000"})
    if request.param == "full":
        await connection.execute(FILL)
    if request.param != "never analysed":
        await connection.execute("VACUUM ANALYZE")
    yield connection
    await connection.close()
    await databases.drop(database)


def steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All parts of a plan."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from steps(inner)


def is_scan(step: dict[str, Any]) -> bool:
    return "Relation Name" in step and "Scan" in step["Node Type"]


async def explain(connection: Any, statement: Statement) -> dict[str, Any]:
    await connection.execute(f"PREPARE tested AS {statement.text}")
    try:
        nulls = ", ".join(["NULL"] * len(statement.parameters))
        call = f"EXECUTE tested({nulls})" if nulls else "EXECUTE tested"
        [row] = await connection.fetch(f"EXPLAIN (FORMAT JSON) {call}")
        found: dict[str, Any] = json.loads(row[0])[0]["Plan"]
        return found
    finally:
        await connection.execute("DEALLOCATE tested")


# Those that may be asked of both places.
READS = [
    "node_by_key",
    "nodes_page",
    "nodes_page_by_state",
    "upstreams_of",
    "downstreams_of",
    "out_degrees",
    "externals_of",
    "graph_nodes",
    "edges_page",
    "inputs",
    "inputs_sizes",
    "specs_of",
    "outputs_page",
    "changes_after",
    "node_keys",
    "compensated_keys",
]


async def test_rows_are_found_by_index(shard: Any) -> None:
    faults = []
    for statement in (*SQL, *(everywhere(getattr(SQL, name)) for name in READS)):
        try:
            _is_found_by_index(statement, list(steps(await explain(shard, statement))))
        except AssertionError as error:
            faults.append(f"{statement.name}: {error}")
    assert faults == []


def _is_found_by_index(statement: Statement, found: list[dict[str, Any]]) -> None:
    assert not [step for step in found if step["Node Type"] in ("Hash Join", "Merge Join", "Bitmap Heap Scan")]
    for scan in filter(is_scan, found):
        if scan["Relation Name"] not in TABLES or scan["Relation Name"] in WALKS.get(statement.name, set()):
            continue
        assert scan["Node Type"] in ("Index Scan", "Index Only Scan", "Tid Scan"), scan
        if scan["Node Type"] == "Tid Scan":
            continue
        assert "Index Cond" in scan, scan
        # An index on (dag_no, ...) entered by its first column alone reads the whole DAG.
        if scan["Index Name"] in ("node_key", "kept_node_key"):
            assert "key" in scan["Index Cond"].replace("dag_no", ""), scan
        for part in WHOLE.get(statement.name, ()):
            assert part in scan["Index Cond"], scan
