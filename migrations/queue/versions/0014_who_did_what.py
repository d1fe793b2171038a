"""What operators did is kept."""

from migrations.script import run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SQL = """
-- A call by which somebody changed what runs: who, what, to what, how many, and from where. On one shard of the
-- service, whichever answers of the first few.
CREATE TABLE audit_entry (
    entry_id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT shard_now(),
    namespace text NOT NULL,
    who text NOT NULL,
    verb text NOT NULL,
    target text NOT NULL,
    changed bigint,
    origin text NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (at, entry_id)
) WITH (autovacuum_analyze_threshold = 1000000);
"""


def upgrade() -> None:
    run_sql(SQL)
