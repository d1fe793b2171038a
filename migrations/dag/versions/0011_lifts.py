"""DAGs whose items go before others: those of started ones, and those with the longest way behind them."""

from migrations.script import run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SQL = """
-- By how much priorities are lowered (lower is sooner), once the DAG has started and per level behind a node.
ALTER TABLE dag ADD COLUMN started_lift int NOT NULL DEFAULT 0, ADD COLUMN path_lift int NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    run_sql(SQL)
