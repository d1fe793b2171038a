"""Ends are told by one function, whether calls wait for what it makes or not."""

from migrations.script import create_functions, run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SQL = """
DROP FUNCTION IF EXISTS hand_completions(
    uuid[], int[], int[], text[], int[], text[], text[], text[], int[], uuid[], float8[], int[], text[], bigint);
DROP FUNCTION IF EXISTS emit_completions(uuid[], int[], int[], text[], int[], text[], text[], text[]);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
