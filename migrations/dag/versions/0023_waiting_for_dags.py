"""Acks of many items wait a little for DAGs that are just being changed (ADR 29)."""

from migrations.script import run_sql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

SQL = """
-- Locks the rows of DAGs, unless that takes too long; then it leaves them as they are. They are locked in the
-- order that everybody locks them in; two who lock those of two shards in two orders part by the same time.
CREATE FUNCTION await_dags(dag_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    home CONSTANT text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '50ms', true);
    PERFORM FROM dag WHERE dag.no = ANY (ARRAY(
        SELECT f.no FROM unnest(dag_ids) AS w(id)
        CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = w.id OFFSET 0) AS f))
    ORDER BY dag.no FOR UPDATE;
    PERFORM set_config('lock_timeout', home, true);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Of `folds` 16: DAGs are waited for.
DO $$
DECLARE
    body text;
    place CONSTANT text := 'SELECT array_agg(d.no) INTO locked';
BEGIN
    FOR body IN
        SELECT pg_get_functiondef(oid) FROM pg_proc
        WHERE proname = 'complete_here' AND pronamespace = current_schema::regnamespace
    LOOP
        ASSERT strpos(body, place) > 0;
        EXECUTE replace(body, place, 'IF folds & 16 > 0 THEN PERFORM await_dags(dag_ids); END IF;
    ' || place);
    END LOOP;
END $$;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
