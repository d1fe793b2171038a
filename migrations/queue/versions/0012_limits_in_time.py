"""An attempt may be limited in time, and an item in all."""

from migrations.script import create_functions, run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SQL = """
-- No lease of a delivery goes on for longer than `timeout_s`, and where `is_deadline` none past `expires_at`.
ALTER TABLE item ADD COLUMN timeout_s float8, ADD COLUMN is_deadline bool;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
