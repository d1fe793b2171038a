"""Topics that have been empty for long are deleted."""

from migrations.script import create_functions, run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = """
-- Set while a topic is to be deleted, to another value each time: nothing is taken in under its number then. Who
-- wants to takes it back first.
ALTER TABLE topic ADD COLUMN retiring uuid;
CREATE INDEX topic_retiring ON topic (topic_id) WHERE retiring IS NOT NULL;

-- When the counts of a topic last changed, or it was made or taken back. One without a row is not deleted.
ALTER TABLE topic_stat ADD COLUMN folded_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE topic_stat ALTER COLUMN folded_at SET DEFAULT shard_now();
INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead)
SELECT topic_id, 0, 0, 0, 0, 0 FROM topic ON CONFLICT (topic_id) DO NOTHING;

-- Items whose end is to be told in a topic. Those of DAGs tell it in the system's topics, which are never deleted.
CREATE INDEX item_ack_topic ON item (ack_topic_id) WHERE ack_topic_id IS NOT NULL AND NOT managed;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
