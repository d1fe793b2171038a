"""A write of a value is known by its id and by what it wrote."""

from migrations.script import create_functions, run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Of each write that is remembered the MD5 of what it wrote, which is as long as an id.
SQL = """
ALTER TABLE dag_value ADD COLUMN prints uuid[] NOT NULL DEFAULT '{}';
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
