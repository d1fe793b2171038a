"""What fails an item for good ends its node by itself."""

from migrations.script import create_functions, run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# It takes one column more.
SQL = """
DROP FUNCTION IF EXISTS complete_here(
    uuid[], text[], int[], uuid[], int[], text[], timestamptz[], text[], int, int);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
