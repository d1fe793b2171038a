"""DAGs, their nodes, edges and externals, and what their transactions leave to be done.

The tables of one DAG shard. Rows that change often keep to columns that no index holds, so that their
updates stay on the page (HOT); `fillfactor` leaves them the room. Nothing here refers to another table by
a foreign key: every change of structure or state happens under the lock of its `dag` row.
"""

from migrations.script import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = """
-- The shard's clock. `now()` would stand still while a transaction waits for a lock.
CREATE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- One row a DAG; its row lock is the lock of the whole DAG. Counts change once per transaction.
CREATE TABLE dag (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    namespace text NOT NULL,
    key text,
    name text,
    state text NOT NULL DEFAULT 'running'
        CHECK (state IN ('running', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    open boolean NOT NULL,
    held boolean NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    closed boolean NOT NULL DEFAULT false,
    on_failure text NOT NULL CHECK (on_failure IN ('continue', 'cancel')),
    deadline_s double precision,
    deadline_at timestamptz,
    cancel_cause text CHECK (cancel_cause IN ('call', 'failure', 'deadline')),
    reason text,
    metadata text,
    created_at timestamptz NOT NULL DEFAULT shard_now(),
    finished_at timestamptz,
    next_n int NOT NULL DEFAULT 0,
    structure_version bigint NOT NULL DEFAULT 0,
    edges int NOT NULL DEFAULT 0,
    externals int NOT NULL DEFAULT 0,
    intent int NOT NULL DEFAULT 0 CHECK (intent >= 0),
    blocked int NOT NULL DEFAULT 0 CHECK (blocked >= 0),
    released int NOT NULL DEFAULT 0 CHECK (released >= 0),
    succeeded int NOT NULL DEFAULT 0 CHECK (succeeded >= 0),
    failed int NOT NULL DEFAULT 0 CHECK (failed >= 0),
    skipped int NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    cancelled int NOT NULL DEFAULT 0 CHECK (cancelled >= 0)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX dag_id ON dag (id);
CREATE UNIQUE INDEX dag_key ON dag (namespace, key) WHERE key IS NOT NULL;
CREATE INDEX dag_listed ON dag (namespace, id);
CREATE INDEX dag_listed_by_state ON dag (namespace, state, id);
CREATE INDEX dag_listed_by_name ON dag (namespace, name, id) WHERE name IS NOT NULL;
CREATE INDEX dag_deadline ON dag (deadline_at) WHERE state = 'running' AND deadline_at IS NOT NULL;

-- One row a node. `no` is the DAG's number, shifted by 22 bits, and the node's own: one column, so that no
-- plan, whatever the statistics say, can look a node up by its DAG alone. The `up_*` columns count its edges
-- by their upstream's state, `up_left` those not flipped.
CREATE TABLE node (
    no bigint PRIMARY KEY,
    dag_no bigint NOT NULL,
    key text NOT NULL,
    item_id uuid NOT NULL,
    state text NOT NULL CHECK
        (state IN ('intent', 'blocked', 'released', 'succeeded', 'failed', 'skipped', 'cancelled')),
    generation int NOT NULL DEFAULT 1,
    topic text NOT NULL,
    trigger text NOT NULL CHECK
        (trigger IN ('all_succeeded', 'all_done', 'any_succeeded', 'any_failed', 'none_failed')),
    pass_outputs boolean NOT NULL,
    enqueued boolean NOT NULL,
    by_call boolean NOT NULL DEFAULT false,
    fingerprint bytea NOT NULL,
    up_left int NOT NULL CHECK (up_left >= 0),
    up_ok int NOT NULL CHECK (up_ok >= 0),
    up_failed int NOT NULL CHECK (up_failed >= 0),
    up_skipped int NOT NULL CHECK (up_skipped >= 0),
    up_cancelled int NOT NULL CHECK (up_cancelled >= 0),
    ext_left int NOT NULL CHECK (ext_left >= 0),
    ext_failed boolean NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT shard_now(),
    released_at timestamptz,
    finished_at timestamptz,
    output text,
    error text
) WITH (fillfactor = 60);

CREATE UNIQUE INDEX node_key ON node (dag_no, key);

-- What a node's item is made of, written once and read when an item is made.
CREATE TABLE node_spec (
    node_no bigint PRIMARY KEY,
    item text NOT NULL
);

-- `satisfied`: the upstream's end is in the downstream's counts. Flipped once, under the DAG's lock.
CREATE TABLE edge (
    up bigint NOT NULL,
    down bigint NOT NULL,
    satisfied boolean NOT NULL,
    PRIMARY KEY (up, down)
) WITH (fillfactor = 80);

CREATE INDEX edge_down ON edge (down, up);

-- One fact per (node, name), whichever came first: its declaration or its resolution.
CREATE TABLE external (
    dag_no bigint NOT NULL,
    node_key text NOT NULL,
    name text NOT NULL,
    declared boolean NOT NULL,
    resolved_at timestamptz,
    failed boolean NOT NULL DEFAULT false,
    data text,
    PRIMARY KEY (dag_no, node_key, name)
);

-- What the queue is still to be told; written with the change that it tells of, deleted once told.
CREATE TABLE outbox (
    node_no bigint NOT NULL,
    generation int NOT NULL,
    action text NOT NULL CHECK (action IN ('enqueue', 'revive', 'cancel')),
    item_id uuid NOT NULL,
    inputs text,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    tries int NOT NULL DEFAULT 0,
    PRIMARY KEY (node_no, generation, action)
);

CREATE INDEX outbox_due ON outbox (due_at);

-- Add calls that have written their nodes and not yet decided them.
CREATE TABLE adding (
    first_no bigint PRIMARY KEY,
    last_no bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT shard_now()
);

-- Terminal nodes whose edges are not all flipped yet, and how far that has come.
CREATE TABLE spread (
    node_no bigint PRIMARY KEY,
    generation int NOT NULL,
    after_down bigint NOT NULL DEFAULT -1
);

-- Walks over all nodes of a DAG: to cancel what is unfinished, or to release what a hold or pause kept.
CREATE TABLE scan (
    dag_no bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('cancel', 'release')),
    after_no bigint NOT NULL,
    PRIMARY KEY (dag_no, kind)
);

-- Totals of ended DAGs, as deltas that the sweeper folds.
CREATE TABLE tally (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL,
    dags bigint NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    cancelled bigint NOT NULL
);
CREATE INDEX dag_live ON dag (state) WHERE state IN ('running', 'cancelling');

ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
ALTER TABLE spread SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE scan SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE adding SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
"""


def upgrade() -> None:
    run_sql(SQL)
