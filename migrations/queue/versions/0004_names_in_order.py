"""Names are in the order of their bytes, whatever the database's collation: lists of several shards are merged."""

from migrations.script import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE namespace ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE topic ALTER COLUMN name TYPE text COLLATE "C";
"""


def upgrade() -> None:
    run_sql(SQL)
