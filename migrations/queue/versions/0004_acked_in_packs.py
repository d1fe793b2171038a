"""What was acked under leases that ran out is remembered many ids a row."""

from migrations.script import create_functions, run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = """
-- Ids that were acked under leases that have run out, or together, for the id window: sorted, up to a hundred in a
-- row, at a tenth of what a row of `ended` takes for each. All of a row were made within the same 16 ms, so that
-- few rows are looked through for one: `made` are the first twelve characters of each.
CREATE TABLE acked (made text NOT NULL, namespace_id int NOT NULL, ids uuid[] NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 1000000);
CREATE INDEX acked_made ON acked (made);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
