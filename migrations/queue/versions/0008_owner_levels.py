"""Which owner of a shard understands what."""

from migrations.script import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = """
-- What the owner of an epoch understands: an older program, which knows nothing of this, leaves its epoch out.
ALTER TABLE shard_owner ADD COLUMN level int NOT NULL DEFAULT 0, ADD COLUMN level_epoch bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    run_sql(SQL)
