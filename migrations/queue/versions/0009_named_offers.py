"""What is handed to calls that wait is leased under the name of who made them."""

from migrations.script import create_functions, run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# With their old parameters.
SQL = """
DROP FUNCTION IF EXISTS tell_acked(
    uuid[], int[], int[], int[], text[], text[], int, int[], uuid[], float8[], int[], bigint);
DROP FUNCTION IF EXISTS fold_completions(
    uuid[], int[], int[], text[], text[], int, int[], uuid[], float8[], int[], bigint);
DROP FUNCTION IF EXISTS revive_here(uuid[], int[], uuid[], float8[], int[], bigint);
DROP FUNCTION IF EXISTS hand_completions(
    uuid[], int[], int[], text[], int[], text[], text[], text[], int[], uuid[], float8[], int[], bigint);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
