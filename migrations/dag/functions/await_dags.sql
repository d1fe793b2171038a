-- Locks the rows of DAGs, unless that takes too long; then it leaves them as they are. They are locked in the
-- order that everybody locks them in; two who lock those of two shards in two orders part by the same time.
CREATE OR REPLACE FUNCTION await_dags(dag_ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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
