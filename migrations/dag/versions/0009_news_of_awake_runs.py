"""Acks say of which runs that are awake somebody has something to tell."""

from migrations.script import create_functions, run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# They give one column more.
SQL = """
DROP FUNCTION IF EXISTS complete_here(
    uuid[], text[], int[], uuid[], int[], text[], timestamptz[], text[], text[], int, int);
DROP FUNCTION IF EXISTS tell_runs_here(
    bigint[], uuid[], text[], int[], uuid[], int[], text[], timestamptz[], text[], int);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
