"""What the holder of an item tells of how far it has come lies with the lease."""

from migrations.script import create_functions, run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SQL = """
-- As JSON text, of all items of a group, and when it was told.
ALTER TABLE lease ADD COLUMN progress text, ADD COLUMN progress_at timestamptz;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
