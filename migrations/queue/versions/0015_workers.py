"""Workers are known by name, and what was cancelled under a lease is told to whoever may hold it."""

from migrations.script import create_functions, run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SQL = """
-- Workers by name, written every few seconds while they are seen. `topics` is a JSON array; who has reported
-- itself is known by that alone, others by their dequeues and extends.
CREATE TABLE worker (
    namespace text NOT NULL,
    name text NOT NULL,
    host text,
    version text,
    topics text NOT NULL,
    running int,
    is_reported bool NOT NULL,
    since timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    alive_until timestamptz NOT NULL,
    PRIMARY KEY (namespace, name)) WITH (
        fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_threshold = 1000000);

-- Items that were cancelled while they were leased, for a minute.
CREATE TABLE cancelled_lease (item_id uuid NOT NULL, namespace_id int NOT NULL, at timestamptz NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 1000000);
CREATE INDEX cancelled_lease_at ON cancelled_lease (at);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
