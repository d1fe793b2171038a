"""Since when an item of a lane is ready: its `deliver_at` is a place in an order, not a time."""

from migrations.script import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = """
-- Written with the place, in the same row version; NULL for items in no lane, whose deliver_at says it.
ALTER TABLE item ADD COLUMN ready_at timestamptz;
"""


def upgrade() -> None:
    run_sql(SQL)
