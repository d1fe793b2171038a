"""Acks say of which runs that are awake somebody has something to tell."""

from migrations.script import create_functions, run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = """
COMMENT ON TYPE told IS
    'A row without a topic names a DAG, by its id, that has ended by the ack; not revived, a run with news.';
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
