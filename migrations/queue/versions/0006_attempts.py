"""Deliveries of DAGs' items that failed, and since when an item is leased.

An ordinary delivery, claimed and acked, writes nothing here: its end is the item's. `claimed_at` is a default, so
that the statement that claims stays as it is.
"""

from migrations.script import run_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE lease ADD COLUMN claimed_at timestamptz NOT NULL DEFAULT shard_now();

CREATE TABLE attempt (
    item_id uuid NOT NULL,
    namespace_id int NOT NULL,
    attempt int NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,                    -- failed, lease_expired, dead
    error text);
CREATE INDEX attempt_item ON attempt (item_id, ended_at);
CREATE INDEX attempt_age ON attempt (ended_at);
"""


def upgrade() -> None:
    run_sql(SQL)
