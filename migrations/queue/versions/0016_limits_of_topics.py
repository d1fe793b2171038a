"""Topics may be limited: so many items a second, so many in flight."""

from migrations.script import create_functions, run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

SQL = """
-- What is set for a topic, as JSON, the same on every shard.
ALTER TABLE topic ADD COLUMN limits text, ADD COLUMN limits_at timestamptz;
CREATE INDEX topic_limits ON topic (topic_id) WHERE limits IS NOT NULL;
DROP INDEX topic_set;
CREATE INDEX topic_set ON topic (topic_id)
    WHERE paused_at IS NOT NULL OR min_share_at IS NOT NULL OR limits_at IS NOT NULL;

-- Of a limited or throttled topic, at the home of its slot: what may be handed out. `granted` maps tokens to how
-- many items a call is about to claim, and until when that may be; `leased` maps shards to how many were leased
-- there at most.
CREATE TABLE topic_gate (
    namespace text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    tokens float8,
    filled_at timestamptz NOT NULL,
    slow_until timestamptz,
    granted text NOT NULL DEFAULT '{}',
    leased text NOT NULL DEFAULT '{}',
    PRIMARY KEY (namespace, topic)) WITH (
        fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 1000000);
CREATE INDEX topic_gate_slow ON topic_gate (slow_until) WHERE slow_until IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
