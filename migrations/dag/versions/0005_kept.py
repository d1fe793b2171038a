"""Ended DAGs: out of the way, kept for a time, exported, dropped.

The tables `kept_*` are the hot ones once more, without room for updates and with only the indexes that
readers need. A column that a hot table gets, its kept one needs too, in the same order: rows go to and fro
whole. The DAG's own row stays in `dag` until it is dropped.
"""

from migrations.script import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = """
CREATE INDEX dag_ended ON dag (finished_at, id) WHERE finished_at IS NOT NULL;

CREATE TABLE kept_node (LIKE node INCLUDING DEFAULTS, PRIMARY KEY (no));
CREATE UNIQUE INDEX kept_node_key ON kept_node (dag_no, key);
CREATE TABLE kept_node_spec (LIKE node_spec INCLUDING DEFAULTS, PRIMARY KEY (node_no));
CREATE TABLE kept_edge (LIKE edge INCLUDING DEFAULTS, PRIMARY KEY (up, down));
CREATE INDEX kept_edge_down ON kept_edge (down, up);
CREATE TABLE kept_external (LIKE external INCLUDING DEFAULTS, PRIMARY KEY (dag_no, node_key, name));
CREATE TABLE kept_change (LIKE change INCLUDING DEFAULTS, PRIMARY KEY (dag_no, last_event));

-- One row for an ended DAG that retention has met. `due`: all its rows are in the hot tables; `moving`,
-- `thawing`: some are; `kept`: none is; `dropping`: its own row is gone, and what it had follows.
CREATE TABLE kept (
    dag_no bigint PRIMARY KEY,
    namespace text NOT NULL,
    finished_at timestamptz NOT NULL,
    phase text NOT NULL CHECK (phase IN ('due', 'moving', 'kept', 'thawing', 'dropping')),
    due_at timestamptz NOT NULL
);
CREATE INDEX kept_due ON kept (due_at) WHERE phase <> 'kept';
CREATE INDEX kept_old ON kept (finished_at, dag_no) WHERE phase = 'kept';

-- How far retention has read the ends, in their order; and up to which end each namespace is exported.
CREATE TABLE retention_mark (finished_at timestamptz NOT NULL, id uuid NOT NULL);
INSERT INTO retention_mark VALUES ('2000-01-01', '00000000-0000-0000-0000-000000000000');
CREATE TABLE export_mark (namespace text PRIMARY KEY, exported_until timestamptz NOT NULL);
"""


def upgrade() -> None:
    run_sql(SQL)
