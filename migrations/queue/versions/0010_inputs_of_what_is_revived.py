"""What an ack revives may be given inputs."""

from migrations.script import create_functions, run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# With its old parameters.
SQL = "DROP FUNCTION IF EXISTS revive_here(uuid[], int[], uuid[], float8[], int[], text[], bigint);"


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
