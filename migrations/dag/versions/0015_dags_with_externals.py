"""DAGs that run and have externals are found by their namespace, those that run longest first."""

from migrations.script import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Counts that change with every node are in neither.
SQL = """
CREATE INDEX dag_with_externals ON dag (namespace, id) WHERE state = 'running' AND externals > 0;
CREATE INDEX external_open ON external (dag_no, node_key, name) WHERE declared AND resolved_at IS NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
