"""A compensation that begins anew knows which success it had begun to undo."""

from migrations.script import run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# `begun_generation`: up to which generation of the other node undoing had begun when this last began anew.
# Of older ones only those are known that had come to their end.
SQL = """
ALTER TABLE cleanup ADD COLUMN begun_generation int NOT NULL DEFAULT 0;
UPDATE cleanup SET begun_generation = undone_generation WHERE undone_generation > 0;
"""


def upgrade() -> None:
    run_sql(SQL)
