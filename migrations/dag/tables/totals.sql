-- Totals of ended DAGs, as deltas that the sweeper folds.
CREATE TABLE tally (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL,
    dags bigint NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    cancelled bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1);
-- The same on every shard; the newest row counts. NULL: the service's default.
CREATE TABLE quota (
    namespace text PRIMARY KEY,
    dags_max bigint,
    nodes_max bigint,
    edges_max bigint,
    updated_at timestamptz NOT NULL DEFAULT shard_now()
);
