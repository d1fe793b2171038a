"""Tables are vacuumed and analysed by what that is worth: each time costs every connection its plans (ADR 20)."""

from migrations.script import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SQL = """
-- Whatever cleans up or analyses a table writes what it found into the catalogue, and every plan of every
-- connection in which the table occurs is made anew at its next use. Statements are written so that no plan
-- depends on statistics, so there is little to be had from new ones.
DO $$
DECLARE
    name regclass;
BEGIN
    FOR name IN
        SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
        ORDER BY relname
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_analyze_threshold = 1000000)', name);
    END LOOP;
END $$;

-- Inserts leave nothing to clean up; by default a thousand of them are a reason.
ALTER TABLE item SET (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE deferred SET (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE parked SET (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE lease SET (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE stat_delta SET (autovacuum_vacuum_insert_threshold = -1);
-- Looked up by whole keys, or walked by age; every ack has it in its plan.
ALTER TABLE dedup SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE attempt SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
