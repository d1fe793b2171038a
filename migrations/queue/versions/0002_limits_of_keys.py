"""Limits of topics may be for each fairness key by itself, and a key may be throttled."""

from migrations.script import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = """
-- A row whose `key` is empty is the topic's own gate, every other one is that of a key. `held` of a key maps the
-- items that were let through to until when they count, leased or not. At `idle_at` a row is as if made anew.
ALTER TABLE topic_gate ADD COLUMN key text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN held text NOT NULL DEFAULT '{}',
    ADD COLUMN idle_at timestamptz;
ALTER TABLE topic_gate DROP CONSTRAINT topic_gate_pkey;
ALTER TABLE topic_gate ADD PRIMARY KEY (namespace, topic, key);
CREATE INDEX topic_gate_throttled ON topic_gate (namespace, topic, key) WHERE slow_until IS NOT NULL;
CREATE INDEX topic_gate_idle ON topic_gate (idle_at) WHERE idle_at IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
