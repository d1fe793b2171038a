"""Processes of before this revision are told in full what an ack has made ready."""

from migrations.script import create_functions, run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SQL = """
DROP FUNCTION IF EXISTS leave_behind(
    acked_item[], uuid[], jsonb, int, int[], uuid[], float8[], int[], text[], bigint);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
