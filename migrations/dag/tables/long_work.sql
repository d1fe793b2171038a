-- What the queue is still to be told; written with the change that it tells of, deleted once told. Empty in the
-- steady state, or nearly, and walked from one end, as are the tables of long work below.
CREATE TABLE outbox (
    node_no bigint NOT NULL,
    generation int NOT NULL,
    action text NOT NULL,
    item_id uuid NOT NULL,
    inputs text,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    tries int NOT NULL DEFAULT 0,
    PRIMARY KEY (node_no, generation, action),
    CONSTRAINT outbox_action CHECK (action = ANY ('{enqueue,revive,cancel,start,stop,report}'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX outbox_due ON outbox (due_at);
-- Add calls whose nodes the queue may not have been given yet.
CREATE TABLE adding (
    first_no bigint PRIMARY KEY,
    last_no bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT shard_now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1);
-- Terminal nodes whose edges are not all flipped yet, and how far that has come.
CREATE TABLE spread (
    node_no bigint PRIMARY KEY,
    generation int NOT NULL,
    after_down bigint NOT NULL DEFAULT -1
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
-- Walks over all nodes of a DAG: to cancel what is unfinished, to release what a hold or pause kept, to clean up.
CREATE TABLE scan (
    dag_no bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('cancel', 'release', 'cleanup')),
    after_no bigint NOT NULL,
    PRIMARY KEY (dag_no, kind)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
-- One row while a retry reopens a DAG's nodes; its `cleanup_phase` is -1 so long, and nothing in it is decided.
-- First what was named and all below in the states `below` (`named`); then what stands in the states `roots`, and
-- what was spared because of it (`roots`, by number after `after_no`); then blocked nodes are counted anew
-- (`count`, the same). `cleanups` are reopened at the end of the second stage.
CREATE TABLE reopening (
    dag_no bigint PRIMARY KEY,
    stage text NOT NULL CHECK (stage IN ('named', 'roots', 'count')),
    below text[] NOT NULL,
    roots text[] NOT NULL,
    by_call_too boolean NOT NULL,
    cleanups bigint[] NOT NULL,
    queue_shard int NOT NULL,
    after_no bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT shard_now()
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
-- Reopened nodes below which is still to be looked, and how far that has come.
CREATE TABLE reach (
    node_no bigint PRIMARY KEY,
    after_down bigint NOT NULL DEFAULT -1
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Timers that run. `look_at` is `due_at`, or later where the end of one could not be written. Walked from one end.
CREATE TABLE timer (
    node_no bigint PRIMARY KEY,
    generation int NOT NULL,
    due_at timestamptz NOT NULL,
    look_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX timer_look ON timer (look_at);
