"""Timers as nodes, and which processes serve them."""

from migrations.script import create_functions, run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = """
-- A node without an item, which succeeds when its time has come.
ALTER TABLE node ADD COLUMN timer boolean NOT NULL DEFAULT false;
ALTER TABLE kept_node ADD COLUMN timer boolean NOT NULL DEFAULT false;

-- Timers that run. `look_at` is `due_at`, or later where the end of one could not be written. Walked from one end.
CREATE TABLE timer (
    node_no bigint PRIMARY KEY,
    generation int NOT NULL,
    due_at timestamptz NOT NULL,
    look_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 1000000);
CREATE INDEX timer_look ON timer (look_at);

-- What the owner of an epoch understands: an older program, which knows nothing of this, leaves its epoch out.
ALTER TABLE shard_owner ADD COLUMN level int NOT NULL DEFAULT 0, ADD COLUMN level_epoch bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
