-- What a shard's server tells of itself and of the shard's tables. Asked by an operator's look, never by the hot path;
-- each block alone, so that what a role may not see, or a server does not have, leaves the others.

-- name: inspect_sessions()
-- Sessions of this database by what they do and wait for; the oldest of each by its transaction, or else its state.
SELECT coalesce(application_name, '') AS application, coalesce(state, backend_type) AS state, wait_event_type, wait_event,
    count(*)::int AS sessions,
    max(extract(epoch FROM clock_timestamp() - coalesce(xact_start, state_change)))::float8 AS oldest_s
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
GROUP BY 1, 2, 3, 4 ORDER BY sessions DESC, oldest_s DESC NULLS LAST LIMIT 20;

-- name: inspect_transactions()
SELECT pid, coalesce(application_name, '') AS application, state, wait_event,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s, left(query, 300) AS statement
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 5;

-- name: inspect_locks()
-- Who waits for a lock, since when, and for whom.
SELECT l.pid, l.locktype AS kind, l.mode, coalesce(c.relname, '') AS "table", pg_blocking_pids(l.pid) AS blocked_by,
    extract(epoch FROM clock_timestamp() - l.waitstart)::float8 AS waits_s, left(a.query, 300) AS statement
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_class c ON c.oid = l.relation
WHERE NOT l.granted AND a.datname = current_database()
ORDER BY l.waitstart LIMIT 20;

-- name: inspect_tables()
SELECT c.relname AS "table", pg_table_size(c.oid)::bigint AS bytes, pg_indexes_size(c.oid)::bigint AS index_bytes,
    pg_stat_get_live_tuples(c.oid)::bigint AS rows, pg_stat_get_dead_tuples(c.oid)::bigint AS dead,
    greatest(pg_stat_get_last_autovacuum_time(c.oid), pg_stat_get_last_vacuum_time(c.oid)) AS vacuumed_at
FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
WHERE n.nspname = current_schema() AND c.relkind = 'r'
ORDER BY pg_total_relation_size(c.oid) DESC, c.relname LIMIT 40;

-- name: inspect_server()
-- `wal_bytes` grows with what is written; a standby, which writes nothing, tells what it has replayed.
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_standby,
    (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END - '0/0'::pg_lsn)::float8
        AS wal_bytes,
    extract(epoch FROM clock_timestamp())::float8 AS at_s,
    extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8 AS up_s,
    pg_database_size(current_database())::bigint AS database_bytes,
    current_setting('max_connections')::int AS connections_max,
    (SELECT count(*) FROM pg_stat_activity)::int AS connections;

-- name: inspect_standbys()
SELECT coalesce(application_name, '') AS name, state, sync_state,
    pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::float8 AS behind_bytes,
    extract(epoch FROM replay_lag)::float8 AS behind_s
FROM pg_stat_replication ORDER BY application_name LIMIT 20;

-- name: inspect_extension()
-- Where the extension's view is, if it is anywhere.
SELECT quote_ident(n.nspname) AS schema
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'pg_stat_statements' AND c.relkind = 'v' LIMIT 1;
