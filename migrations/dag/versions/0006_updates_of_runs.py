"""Signals of runs whose senders wait for an answer."""

from migrations.script import run_sql

<<<<<<<< HEAD:migrations/dag/versions/0006_updates_of_runs.py
revision = "0006"
down_revision = "0005"
========
revision = "0005"
down_revision = "0004"
>>>>>>>> 66e487f7 (A run that failed within a timeout goes on within it; the longest example is under 80 lines):migrations/dag/versions/0005_updates_of_runs.py
branch_labels = None
depends_on = None

# `answer` is JSON text.
SQL = """
ALTER TABLE signal_id ADD COLUMN asks boolean NOT NULL DEFAULT false, ADD COLUMN answer text;
"""


def upgrade() -> None:
    run_sql(SQL)
