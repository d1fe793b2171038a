"""Runs of schedules that have ended are forgotten also behind many that go on."""

from migrations.script import create_functions, run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = """
-- Up to which run the last look for runs that have ended has come; 0: to the end.
ALTER TABLE schedule ADD COLUMN pruned_to bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
