"""An entry of the audit log is written before its call is done, and ended after it."""

from migrations.script import run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# `call` names an entry for who ends it, and for the same call that comes once more. `ended`: it is surely done.
SQL = """
ALTER TABLE audit_entry ADD COLUMN call uuid, ADD COLUMN ended boolean NOT NULL DEFAULT true;
CREATE UNIQUE INDEX audit_entry_call ON audit_entry (call) WHERE call IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
