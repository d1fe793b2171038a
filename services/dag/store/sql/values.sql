-- Values that the jobs of a DAG share.

-- name: put_value(dag_id, namespace, key, value, version, write_id, keys_max, bytes_max, writes_max)
SELECT o_status AS status, o_version AS version, o_updated_at AS updated_at
FROM put_value($1::uuid, $2::text, $3::text, $4::text, $5::bigint, $6::uuid, $7::int, $8::bigint, $9::int);

-- name: get_value(dag_id, namespace, key)
-- One row where there is such a DAG.
SELECT v.key, v.value, v.version, v.updated_at
FROM dag d LEFT JOIN LATERAL (
    SELECT key, value, version, updated_at FROM dag_value WHERE dag_no = d.no AND key = $3 OFFSET 0) AS v ON true
WHERE d.id = $1 AND d.namespace = $2;

-- name: values_page(dag_no, after_key, rows_max, bytes_max)
-- As many as come before they take so many bytes together, and one.
SELECT key, value, version, updated_at FROM (
    SELECT page.*, sum(octet_length(value)) OVER (ORDER BY key) AS bytes FROM (
        SELECT key, value, version, updated_at FROM dag_value WHERE dag_no = $1 AND key > $2
        ORDER BY key LIMIT $3) AS page) AS sized
WHERE bytes - octet_length(value) < $4
ORDER BY key;
