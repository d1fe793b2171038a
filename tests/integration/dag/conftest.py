"""A DAG service on one shard and a fake queue."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dag_scene import Scene, scene_on
from tests.support.dag_world import DagWorld
from tests.support.databases import Database, Databases
from tests.support.kept_connections import keep, look_through
from tests.support.queue_fake import FakeQueue

# A few rows are deleted: TRUNCATE makes new files, and all plans anew. So does a new `shard_now()`.
_EMPTY = """
DO $$
DECLARE used text; size bigint; number text;
BEGIN
    FOREACH used IN ARRAY '{dag, node, node_spec, edge, external, outbox, adding, spread, scan, tally, change,
        kept, kept_node, kept_node_spec, kept_change, kept_edge, kept_external, export_mark, expansion, cleanup,
        reopening, reach, quota, dag_value, dag_value_use, timer, schedule, tick,
        waiting_slot, schedule_run, workflow, run, event, signal_count, signal_id, published}'::text[]
    LOOP
        size := pg_relation_size(used::regclass);
        IF size > 128 * 1024 THEN
            EXECUTE 'TRUNCATE ' || used;
        ELSIF size > 0 THEN
            EXECUTE 'DELETE FROM ' || used;
        END IF;
    END LOOP;
    FOREACH number IN ARRAY '{dag_no_seq, schedule_no_seq, tally_id_seq, waiting_slot_no_seq}'::text[] LOOP
        PERFORM setval(number::regclass, 1, false);
    END LOOP;
    IF (SELECT prosrc FROM pg_proc WHERE oid = 'shard_now'::regproc) <> 'SELECT clock_timestamp()' THEN
        CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz
            LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
    END IF;
END $$;
UPDATE retention_mark SET finished_at = '2000-01-01', id = '00000000-0000-0000-0000-000000000000';
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
async def world(dag_database: Database) -> AsyncIterator[DagWorld]:
    """Each test its own service; every one ends with an audit of counters against facts."""
    await _empty(dag_database)
    made = DagWorld(dag_database, FakeQueue())
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
