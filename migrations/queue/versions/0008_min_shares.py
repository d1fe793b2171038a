"""Minimum shares per priority, a setting of a topic."""

from migrations.script import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = """
ALTER TABLE topic ADD COLUMN min_share text;  -- JSON: [[priority, share], ...]; NULL: none
CREATE INDEX topic_min_share ON topic (topic_id) WHERE min_share IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
