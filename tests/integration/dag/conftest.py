"""A DAG service on one shard and a fake queue."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dag_world import DagWorld
from tests.support.databases import Database, Databases
from tests.support.queue_fake import FakeQueue

_EMPTY = """
TRUNCATE dag, node, node_spec, edge, external, outbox, adding, spread, scan, tally, change, kept, kept_node,
    kept_node_spec, kept_change, kept_edge, kept_external, export_mark, expansion, cleanup RESTART IDENTITY;
UPDATE retention_mark SET finished_at = '2000-01-01', id = '00000000-0000-0000-0000-000000000000';
CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
"""


@pytest.fixture(scope="session")
async def dag_database(databases: Databases) -> AsyncIterator[Database]:
    """One database for all tests here; each finds it empty."""
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
async def world(dag_database: Database) -> AsyncIterator[DagWorld]:
    """Each test its own service; every one ends with an audit of counters against facts."""
    connection = await dag_database.connect("dag_000")
    await connection.execute(_EMPTY)
    await connection.close()
    made = DagWorld(dag_database, FakeQueue())
    try:
        yield made
        await made.audit()
    finally:
        await made.close()
