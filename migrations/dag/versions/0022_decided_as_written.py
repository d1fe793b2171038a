"""Nodes are decided as they are written (ADR 28): none is only intended any more."""

from migrations.script import run_sql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

SQL = """
-- What an add call that stopped half-way has left is blocked, and decided by a walk.
INSERT INTO scan (dag_no, kind, after_no) SELECT no, 'release', (no << 22) - 1 FROM dag WHERE intent > 0
ON CONFLICT (dag_no, kind) DO UPDATE SET after_no = excluded.after_no;
UPDATE node SET state = 'blocked' FROM dag WHERE dag.intent > 0 AND node.dag_no = dag.no AND node.state = 'intent';
UPDATE dag SET blocked = blocked + intent WHERE intent > 0;

DO $$
DECLARE
    body text;
BEGIN
    FOR body IN
        SELECT pg_get_functiondef(oid) FROM pg_proc
        WHERE proname = 'complete_here' AND pronamespace = current_schema::regnamespace
    LOOP
        EXECUTE replace(body, 'dag.intent + ', '');
    END LOOP;
END $$;
ALTER TABLE dag DROP COLUMN intent;
ALTER TABLE dag ADD CONSTRAINT dag_counts CHECK
    (least(blocked, released, succeeded, failed, skipped, cancelled) >= 0) NOT VALID;
ALTER TABLE node DROP CONSTRAINT node_state, ADD CONSTRAINT node_state CHECK
    (state = ANY ('{blocked,released,succeeded,failed,skipped,cancelled}')) NOT VALID;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
