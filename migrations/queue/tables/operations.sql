-- What is done to many items at once: one row per shard and operation, under one id. The row is locked by whoever
-- does the next part of it, and moved on in the transaction that does that part.
CREATE TABLE operation (
    id uuid PRIMARY KEY,
    namespace text NOT NULL,
    namespace_id int,                         -- NULL: unknown to this shard
    topic_id int,                             -- NULL: every topic of the namespace
    kind text NOT NULL,                       -- purge, redrive, cancel
    filter text NOT NULL,
    state text NOT NULL,                      -- running, done, cancelled
    cursor text NOT NULL DEFAULT '',
    total bigint NOT NULL,
    scanned bigint NOT NULL DEFAULT 0,
    changed bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    shards int[] NOT NULL,
    unplaced int[] NOT NULL,                  -- shards that have no row yet
    cutoff timestamptz NOT NULL,              -- what comes later is not touched
    requested_at timestamptz NOT NULL,
    stepped_at timestamptz NOT NULL,
    finished_at timestamptz) WITH (fillfactor = 50);
CREATE INDEX operation_running ON operation (stepped_at) WHERE state = 'running';
CREATE INDEX operation_unplaced ON operation (requested_at) WHERE unplaced <> '{}';
CREATE INDEX operation_finished ON operation (finished_at) WHERE state <> 'running';
CREATE INDEX operation_listed ON operation (namespace, id);
