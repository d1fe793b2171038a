"""What is remembered of ended items is their ids and outcomes: nothing ever wrote the tokens."""

from migrations.script import run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE ended DROP COLUMN token;
ALTER TABLE ended_old DROP COLUMN token;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
