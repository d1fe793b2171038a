"""Runs go on from an earlier event, or with other outputs: what holds no more is void, and stays in the log."""

from migrations.script import create_functions, run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# `void`: since the run's so many-th reset; `reset`: the first event that code is told of after that.
SQL = """
ALTER TABLE event ADD COLUMN reset int, ADD COLUMN void int;
ALTER TABLE run ADD COLUMN resets int NOT NULL DEFAULT 0;
CREATE INDEX event_void ON event (dag_no, key) WHERE void IS NOT NULL AND after IS NOT NULL;
CREATE INDEX event_reset ON event (dag_no, key) WHERE kind = 'run' AND state = 'reset';
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
