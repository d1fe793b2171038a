"""Ids of signals have an age: a run that goes on as a new one takes along those that may still come again."""

from migrations.script import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE signal_id ADD COLUMN at timestamptz NOT NULL DEFAULT shard_now();
"""


def upgrade() -> None:
    run_sql(SQL)
