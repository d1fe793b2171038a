"""No statement looks for parked items by topic alone; every disabled item paid for the index that could."""

from migrations.script import run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SQL = """
DROP INDEX parked_topic;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
