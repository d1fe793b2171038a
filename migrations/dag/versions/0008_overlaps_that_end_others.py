"""More overlap policies of schedules."""

from migrations.script import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE schedule DROP CONSTRAINT schedule_overlap;
ALTER TABLE schedule ADD CONSTRAINT schedule_overlap
    CHECK (overlap IN ('skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow'));
"""


def upgrade() -> None:
    run_sql(SQL)
