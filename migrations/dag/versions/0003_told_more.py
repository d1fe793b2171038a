"""Nodes whose failure is tolerated; what a compensation undoes; events that nothing waits for."""

from migrations.script import create_functions, run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = """
-- A node whose failure does not fail its DAG, and how many such nodes of a DAG have failed.
ALTER TABLE node ADD COLUMN tolerate boolean NOT NULL DEFAULT false;
ALTER TABLE kept_node ADD COLUMN tolerate boolean NOT NULL DEFAULT false;
ALTER TABLE dag ADD COLUMN tolerated int NOT NULL DEFAULT 0;

-- Of a compensation: up to which generation of the other node all is undone, and the last success of that node
-- that a retry has replaced and that nothing has undone.
ALTER TABLE cleanup ADD COLUMN undone_generation int NOT NULL DEFAULT 0,
    ADD COLUMN done_generation int NOT NULL DEFAULT 0, ADD COLUMN done_released_at timestamptz,
    ADD COLUMN done_finished_at timestamptz, ADD COLUMN done_payload text, ADD COLUMN done_output text;
CREATE INDEX cleanup_of ON cleanup (of_no) WHERE of_no IS NOT NULL;

-- Events that were resolved and that no node has declared.
CREATE INDEX external_undeclared ON external (dag_no, node_key, name) WHERE NOT declared;
CREATE INDEX kept_external_undeclared ON kept_external (dag_no, node_key, name) WHERE NOT declared;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
