"""Nodes that expand themselves while they run: who their children are."""

from migrations.script import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SQL = """
-- Asked only for DAGs that have children: `expanded` counts them.
ALTER TABLE dag ADD COLUMN expanded int NOT NULL DEFAULT 0;

CREATE TABLE expansion (
    node_no bigint NOT NULL,
    child_no bigint NOT NULL,
    PRIMARY KEY (node_no, child_no)
);
"""


def upgrade() -> None:
    run_sql(SQL)
