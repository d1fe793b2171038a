"""When quotas, pauses and minimum shares were set, so that the newest can be brought to every shard."""

from migrations.script import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = """
-- NULL: never set here. A row that was only made by a first item must not count as a newer setting.
ALTER TABLE namespace RENAME COLUMN updated_at TO set_at;
ALTER TABLE namespace ALTER COLUMN set_at DROP DEFAULT, ALTER COLUMN set_at DROP NOT NULL;
UPDATE namespace SET set_at = NULL WHERE settings = '{}';
CREATE INDEX namespace_set ON namespace (namespace_id) WHERE set_at IS NOT NULL;

ALTER TABLE topic ADD COLUMN paused_at timestamptz, ADD COLUMN min_share_at timestamptz;
UPDATE topic SET paused_at = shard_now() WHERE paused;
UPDATE topic SET min_share_at = shard_now() WHERE min_share IS NOT NULL;
CREATE INDEX topic_set ON topic (topic_id) WHERE paused_at IS NOT NULL OR min_share_at IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
