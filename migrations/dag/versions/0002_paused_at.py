"""Since when a DAG is paused, for those who ask what it waits for."""

from migrations.script import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE dag ADD COLUMN paused_at timestamptz;
"""


def upgrade() -> None:
    run_sql(SQL)
