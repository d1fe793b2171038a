"""Who owns the shard: a lease with an epoch, taken by compare-and-set and renewed every few seconds."""

from migrations.script import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = """
-- One row. No index, so that renewals stay on the page.
CREATE TABLE shard_owner (
    owner text,                               -- NULL: given up
    epoch bigint NOT NULL,                    -- one more with each change of owner
    expires_at timestamptz NOT NULL,
    wanted_by text);                          -- who the balance gives it to, while another has it
INSERT INTO shard_owner VALUES (NULL, 0, clock_timestamp(), NULL);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
