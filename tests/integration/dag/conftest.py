"""A DAG service on one shard and a fake queue."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dag_scene import Scene, scene_on
from tests.support.dag_world import DagWorld
from tests.support.databases import Database, Databases
from tests.support.folding import Folding, folding_on
from tests.support.kept_connections import keep, look_through
from tests.support.queue_fake import FakeQueue

# A table that nobody wrote to need not be emptied: that makes new files for it and for each of its indexes. Those
# that are emptied by TRUNCATE are planned anew on the connections that are kept, as on new ones.
_EMPTY = """
DO $$
DECLARE used text;
BEGIN
    SELECT string_agg(name, ', ') INTO used
    FROM unnest('{dag, node, node_spec, edge, external, outbox, adding, spread, scan, tally, change, kept,
        kept_node, kept_node_spec, kept_change, kept_edge, kept_external, export_mark, expansion, cleanup,
        reopening, reach, quota, dag_value, dag_value_use, timer, schedule, tick,
        waiting_slot, schedule_run, workflow, run, event, signal_count, signal_id, published}'::text[]) AS name
    WHERE pg_relation_size(name::regclass) > 0;
    IF used IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || used || ' RESTART IDENTITY';
    END IF;
END $$;
UPDATE retention_mark SET finished_at = '2000-01-01', id = '00000000-0000-0000-0000-000000000000';
CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
"""


@pytest.fixture(scope="session")
async def dag_database(databases: Databases) -> AsyncIterator[Database]:
    """One database for all tests here; each finds it empty."""
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


async def _empty(database: Database) -> None:
    connection = await look_through(database.dsn, "dag_000")
    await connection.execute(_EMPTY)
    keep(connection, database.dsn, "dag_000")


@pytest.fixture
async def empty_database(dag_database: Database) -> Database:
    """That database, without what tests before this one have left in it."""
    await _empty(dag_database)
    return dag_database


@pytest.fixture
async def world(empty_database: Database) -> AsyncIterator[DagWorld]:
    """Each test its own service; every one ends with an audit of counters against facts."""
    made = DagWorld(empty_database, FakeQueue())
    try:
        yield made
        await made.audit()
    finally:
        await made.close()


@pytest.fixture(scope="module")
async def scene(dag_database: Database) -> AsyncIterator[Scene]:
    """Shared by the races of a module: each makes DAGs of its own."""
    await _empty(dag_database)
    world = DagWorld(dag_database, FakeQueue())
    try:
        async with scene_on(dag_database, world) as made:
            yield made
    finally:
        await world.close()


@pytest.fixture(scope="module")
async def folding_database(databases: Databases) -> AsyncIterator[Database]:
    """A queue and a DAG shard side by side."""
    made = await databases.create(queue_shards=1, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
async def folding(folding_database: Database) -> AsyncIterator[Folding]:
    """Acks go on with their DAG."""
    async with folding_on(folding_database) as made:
        yield made


@pytest.fixture
async def telling(folding_database: Database) -> AsyncIterator[Folding]:
    """Acks are told to the DAG service."""
    async with folding_on(folding_database, fold_completions=False) as made:
        yield made
