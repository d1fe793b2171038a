"""The row that lets a child DAG go on says how, where that is not with all that failed."""

from migrations.script import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# A process that does not know it lets the child go on with all that failed.
SQL = """
ALTER TABLE outbox ADD COLUMN retry text;
"""


def upgrade() -> None:
    run_sql(SQL)
