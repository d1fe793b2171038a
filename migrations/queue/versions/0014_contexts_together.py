"""Contexts of acked items are parsed together, and who held them is told beside them."""

from migrations.script import create_functions, run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SQL = """
DROP FUNCTION IF EXISTS tell_acked(
    uuid[], int[], int[], int[], text[], text[], int, int[], uuid[], float8[], int[], text[], bigint);
DROP FUNCTION IF EXISTS fold_completions(
    uuid[], int[], int[], text[], text[], int, int[], uuid[], float8[], int[], text[], bigint);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
