"""Externals that count as failed when nobody has resolved them in time."""

from migrations.script import run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE external ADD COLUMN deadline_s double precision, ADD COLUMN deadline_at timestamptz,
    ADD COLUMN reason text;
ALTER TABLE kept_external ADD COLUMN deadline_s double precision, ADD COLUMN deadline_at timestamptz,
    ADD COLUMN reason text;
CREATE INDEX external_deadline ON external (deadline_at) WHERE deadline_at IS NOT NULL AND resolved_at IS NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
