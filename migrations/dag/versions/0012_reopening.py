"""Retries that are too large for one transaction: how far each has come."""

from migrations.script import run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SQL = """
-- One row while a retry reopens a DAG's nodes; its `cleanup_phase` is -1 so long, and nothing in it is decided.
-- First what was named and all below in the states `below` (`named`); then what stands in the states `roots`, and
-- what was spared because of it (`roots`, by number after `after_no`); then blocked nodes are counted anew
-- (`count`, the same). `cleanups` are reopened at the end of the second stage.
CREATE TABLE reopening (
    dag_no bigint PRIMARY KEY,
    stage text NOT NULL CHECK (stage IN ('named', 'roots', 'count')),
    below text[] NOT NULL,
    roots text[] NOT NULL,
    by_call_too boolean NOT NULL,
    cleanups bigint[] NOT NULL,
    queue_shard int NOT NULL,
    after_no bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT shard_now()
);

-- Reopened nodes below which is still to be looked, and how far that has come.
CREATE TABLE reach (
    node_no bigint PRIMARY KEY,
    after_down bigint NOT NULL DEFAULT -1
);

ALTER TABLE reopening SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE reach SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
"""


def upgrade() -> None:
    run_sql(SQL)
