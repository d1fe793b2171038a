"""Operations and topics are found by their ids, whatever statistics say."""

from migrations.script import create_functions, run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# As in the DAG shards' 0003: this index serves who names the namespace, and nobody else.
SQL = """
DROP INDEX operation_listed;
CREATE INDEX operation_listed ON operation (namespace, id) WHERE namespace IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
