-- Of an extension that a server may not have, in a schema that is its own: `extension` stands for it.

-- name: inspect_statements()
SELECT left(regexp_replace(query, '\s+', ' ', 'g'), 300) AS statement, calls::bigint AS calls,
    mean_exec_time::float8 AS mean_ms, total_exec_time::float8 AS total_ms, rows::bigint AS rows
FROM extension.pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY total_exec_time DESC LIMIT 15;
