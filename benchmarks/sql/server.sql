-- About the server itself.

-- name: wal_bytes()
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8;

-- name: transactions()
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database();
