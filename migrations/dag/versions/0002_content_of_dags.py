"""What the call asked for that made a DAG with a key."""

from migrations.script import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE dag ADD COLUMN content bytea;  -- of one with a key: a digest of the call that made it
"""


def upgrade() -> None:
    run_sql(SQL)
