"""Signals of runs whose senders wait for an answer."""

from migrations.script import run_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# `answer` is JSON text.
SQL = """
ALTER TABLE signal_id ADD COLUMN asks boolean NOT NULL DEFAULT false, ADD COLUMN answer text;
"""


def upgrade() -> None:
    run_sql(SQL)
