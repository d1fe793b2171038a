-- Writes one value of a DAG, where it still has the version that the caller expects (0: there is none; NULL:
-- whatever it has). The lock is the row of `dag_value_use`, not the DAG's: writes of values hold up no acks. All that
-- follows the lock reads with a snapshot of its own.
--
-- `o_status`: `put`; `not_found` (no such DAG in the namespace); `over` (it has ended); `conflict` (`o_version` is
-- what the value has); `keys`, `bytes` (the DAG would hold too much). A write whose id is among the last of its value
-- was applied before, and is answered as it was then; `reused` where another value was written under that id.
CREATE OR REPLACE FUNCTION put_value(
    for_dag uuid, for_namespace text, for_key text, new_value text, expected bigint, write_id uuid, keys_max int,
    bytes_max bigint, writes_max int)
RETURNS TABLE (o_status text, o_version bigint, o_updated_at timestamptz) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_dag record;
    used record;
    old record;
    place int;
    print uuid := md5(new_value);
BEGIN
    SELECT dag.no, dag.state IN ('running', 'cancelling') AS lives INTO found_dag
    FROM dag WHERE dag.id = for_dag AND dag.namespace = for_namespace;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'not_found', NULL::bigint, NULL::timestamptz;
        RETURN;
    END IF;
    IF found_dag.lives THEN
        INSERT INTO dag_value_use VALUES (found_dag.no, 0, 0) ON CONFLICT DO NOTHING;
    END IF;
    SELECT keys, bytes INTO used FROM dag_value_use WHERE dag_no = found_dag.no FOR UPDATE;
    SELECT * INTO old FROM dag_value WHERE dag_no = found_dag.no AND key = for_key;
    place := array_position(old.writes, write_id);
    IF place IS NOT NULL AND old.prints[place] <> print THEN
        RETURN QUERY SELECT 'reused', NULL::bigint, NULL::timestamptz;
    ELSIF place IS NOT NULL THEN
        RETURN QUERY SELECT 'put', old.version - cardinality(old.writes) + place, old.updated_at;
    ELSIF NOT found_dag.lives THEN
        RETURN QUERY SELECT 'over', NULL::bigint, NULL::timestamptz;
    ELSIF expected <> coalesce(old.version, 0) THEN
        RETURN QUERY SELECT 'conflict', coalesce(old.version, 0), old.updated_at;
    ELSIF old.version IS NULL AND used.keys >= keys_max THEN
        RETURN QUERY SELECT 'keys', NULL::bigint, NULL::timestamptz;
    ELSIF used.bytes - coalesce(octet_length(old.value), 0) + octet_length(new_value) > bytes_max THEN
        RETURN QUERY SELECT 'bytes', NULL::bigint, NULL::timestamptz;
    ELSE
        UPDATE dag_value_use SET keys = keys + (old.version IS NULL)::int,
            bytes = bytes - coalesce(octet_length(old.value), 0) + octet_length(new_value)
        WHERE dag_no = found_dag.no;
        RETURN QUERY INSERT INTO dag_value AS v (dag_no, key, value, version, writes, prints, updated_at)
            VALUES (found_dag.no, for_key, new_value, 1, ARRAY[write_id], ARRAY[print], shard_now())
            ON CONFLICT (dag_no, key) DO UPDATE SET value = new_value, version = v.version + 1,
                writes = (v.writes || write_id)[greatest(1, cardinality(v.writes) + 2 - writes_max) :],
                prints = (v.prints || print)[greatest(1, cardinality(v.prints) + 2 - writes_max) :],
                updated_at = shard_now()
            RETURNING 'put', v.version, v.updated_at;
    END IF;
END $$;
