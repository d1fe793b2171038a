"""Tables are vacuumed and analysed by what that is worth: each time costs every connection its plans (ADR 20)."""

from migrations.script import run_sql

revision = "0017"
down_revision = "0016"
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

-- Updates stay on their pages and are cleaned up there; what is left are index entries of rows that left theirs.
-- A table of any size is cleaned up at a fifth of its rows, a small one not before these.
ALTER TABLE node SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE node_spec SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE edge SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE external SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE change SET (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE dag SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = 100000);
-- Empty in the steady state, or nearly, and walked from one end.
ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE adding SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE tally SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
