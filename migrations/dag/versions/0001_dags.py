"""DAGs, their nodes, edges and externals; what the queue is still to be told; long work as rows; ended DAGs."""

from migrations.script import create_functions, run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = r"""
-- Who this schema is, so that a host with an old map can do no harm; `state` as in the queue's shards.
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'open',
    move text);
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);

-- Who owns the shard: one row, a lease. No index, so that renewals stay on the page.
CREATE TABLE shard_owner (
    owner text,                               -- NULL: given up
    epoch bigint NOT NULL,                    -- one more with each change of owner
    expires_at timestamptz NOT NULL,
    wanted_by text);                          -- who the balance gives it to, while another has it
INSERT INTO shard_owner VALUES (NULL, 0, clock_timestamp(), NULL);

-- One row a DAG; its row lock is the lock of the whole DAG. Counts change once per transaction.
--
-- A statement reads the text of each CHECK of a table before the first row that it writes. Counts, which each
-- change moves, are checked by one expression; the words by one array each. Words that only a call gives, and that
-- its model knows, are not checked a second time.
CREATE TABLE dag (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    namespace text NOT NULL,
    key text,
    name text,
    state text NOT NULL DEFAULT 'running',
    open boolean NOT NULL,
    held boolean NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    closed boolean NOT NULL DEFAULT false,
    on_failure text NOT NULL,                 -- continue, cancel
    deadline_s double precision,
    deadline_at timestamptz,
    cancel_cause text,                        -- call, failure, deadline
    reason text,
    metadata text,
    created_at timestamptz NOT NULL DEFAULT shard_now(),
    finished_at timestamptz,
    next_n int NOT NULL DEFAULT 0,
    structure_version bigint NOT NULL DEFAULT 0,
    edges int NOT NULL DEFAULT 0,
    externals int NOT NULL DEFAULT 0,
    blocked int NOT NULL DEFAULT 0,
    released int NOT NULL DEFAULT 0,
    succeeded int NOT NULL DEFAULT 0,
    failed int NOT NULL DEFAULT 0,
    skipped int NOT NULL DEFAULT 0,
    cancelled int NOT NULL DEFAULT 0,
    paused_at timestamptz,
    depth int NOT NULL DEFAULT 0,             -- 0: a DAG of its own, not in the place of a node
    parent_dag uuid,
    parent_node text,
    parent_generation int,
    endings int NOT NULL DEFAULT 0,           -- how often it was reopened: each end is told once
    last_event bigint NOT NULL DEFAULT 0,     -- the number of its last change
    expanded int NOT NULL DEFAULT 0,          -- nodes that expansions have made
    cleanups int NOT NULL DEFAULT 0,
    cleanup_left int NOT NULL DEFAULT 0,      -- cleanup and compensation nodes that are not terminal
    cleanup_phase int NOT NULL DEFAULT 0,     -- 1: compensation runs, 2: cleanup does, -1: it is being reopened
    verdict text,                             -- its end as its ordinary nodes decided it
    -- By how much priorities are lowered (lower is sooner), once the DAG has started and per level behind a node.
    started_lift int NOT NULL DEFAULT 0,
    path_lift int NOT NULL DEFAULT 0,
    CONSTRAINT dag_counts CHECK (least(blocked, released, succeeded, failed, skipped, cancelled) >= 0),
    CONSTRAINT dag_state CHECK (state = ANY ('{running,cancelling,succeeded,failed,cancelled}'))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = 100000);
CREATE UNIQUE INDEX dag_id ON dag (id);
CREATE UNIQUE INDEX dag_key ON dag (namespace, key) WHERE key IS NOT NULL;
CREATE INDEX dag_listed ON dag (namespace, id);
CREATE INDEX dag_listed_by_state ON dag (namespace, state, id);
CREATE INDEX dag_listed_by_name ON dag (namespace, name, id) WHERE name IS NOT NULL;
CREATE INDEX dag_deadline ON dag (deadline_at) WHERE state = 'running' AND deadline_at IS NOT NULL;
CREATE INDEX dag_live ON dag (state) WHERE state IN ('running', 'cancelling');
CREATE INDEX dag_ended ON dag (finished_at, id) WHERE finished_at IS NOT NULL;

-- One row a node. `no` is the DAG's number, shifted by 22 bits, and the node's own: one column, so that no
-- plan, whatever the statistics say, can look a node up by its DAG alone. The `up_*` columns count its edges
-- by their upstream's state, `up_left` those not flipped.
--
-- A node is updated twice, released and ended, an edge once, soon after each other and for thousands that lie side
-- by side: no page is cleaned up in between. A page that is filled to a third, or to a half, takes all of it, and
-- no index is written. A table of any size is vacuumed at a fifth of its rows, a small one not before its
-- threshold.
CREATE TABLE node (
    no bigint PRIMARY KEY,
    dag_no bigint NOT NULL,
    key text NOT NULL,
    item_id uuid NOT NULL,
    state text NOT NULL,
    generation int NOT NULL DEFAULT 1,
    topic text NOT NULL,
    trigger text NOT NULL,                    -- all_succeeded, all_done, any_succeeded, any_failed, none_failed
    pass_outputs boolean NOT NULL,
    enqueued boolean NOT NULL,
    by_call boolean NOT NULL DEFAULT false,
    fingerprint bytea NOT NULL,
    up_left int NOT NULL,
    up_ok int NOT NULL,
    up_failed int NOT NULL,
    up_skipped int NOT NULL,
    up_cancelled int NOT NULL,
    ext_left int NOT NULL,
    ext_failed boolean NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT shard_now(),
    released_at timestamptz,
    finished_at timestamptz,
    output text,
    error text,
    sub boolean NOT NULL DEFAULT false,       -- a DAG runs in its place, and `item_id` is its id
    -- On which ends of its DAG a cleanup node runs; `undo`: it compensates another node. NULL: an ordinary node.
    run_on text,
    -- Since when its item was held by whom, in the delivery that it ended in.
    started_at timestamptz,
    worker text,
    CONSTRAINT node_counts CHECK (least(up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left) >= 0),
    CONSTRAINT node_state CHECK (state = ANY ('{blocked,released,succeeded,failed,skipped,cancelled}'))
) WITH (fillfactor = 35, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
CREATE UNIQUE INDEX node_key ON node (dag_no, key);

-- What a node's item is made of, written once and read when an item is made.
CREATE TABLE node_spec (
    node_no bigint PRIMARY KEY,
    item text NOT NULL
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);

-- `satisfied`: the upstream's end is in the downstream's counts. Flipped once, under the DAG's lock.
CREATE TABLE edge (
    up bigint NOT NULL,
    down bigint NOT NULL,
    satisfied boolean NOT NULL,
    PRIMARY KEY (up, down)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
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
    deadline_s double precision,
    deadline_at timestamptz,
    reason text,
    PRIMARY KEY (dag_no, node_key, name)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);
CREATE INDEX external_deadline ON external (deadline_at) WHERE deadline_at IS NOT NULL AND resolved_at IS NULL;

-- Asked only for DAGs that have children: `dag.expanded` counts them.
CREATE TABLE expansion (
    node_no bigint NOT NULL,
    child_no bigint NOT NULL,
    PRIMARY KEY (node_no, child_no)
);

-- Cleanup and compensation nodes. `wave`: 0 until compensation is planned, then its turn, -1 when that has come,
-- -2 where nothing is left to be undone, NULL once it had its turn.
CREATE TABLE cleanup (
    dag_no bigint NOT NULL,
    node_no bigint NOT NULL,
    of_no bigint,                             -- the node that it compensates
    wave int,
    PRIMARY KEY (dag_no, node_no)
);
CREATE INDEX cleanup_wave ON cleanup (dag_no, wave) WHERE wave IS NOT NULL;

-- One row for all changes that one transaction made to one DAG. They are numbered under the DAG's lock, so numbers
-- have no gaps and grow in the order of the commits: whoever has read up to one has missed none before it.
-- `nodes` is text like `12:succeeded 13:released 14:blocked#2` (a node's number in its DAG, its state, and its
-- generation where that is not the first); `dag` is JSON. `last_event` is the number of the row's last change.
CREATE TABLE change (
    dag_no bigint NOT NULL,
    last_event bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT shard_now(),
    nodes text,
    dag text,
    PRIMARY KEY (dag_no, last_event)
) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = 100000);

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

-- Ended DAGs that retention has moved out of the hot tables: the same columns. Readers of an ended DAG read both.
CREATE TABLE kept_node (LIKE node INCLUDING DEFAULTS, PRIMARY KEY (no));
CREATE UNIQUE INDEX kept_node_key ON kept_node (dag_no, key);
CREATE TABLE kept_node_spec (LIKE node_spec INCLUDING DEFAULTS, PRIMARY KEY (node_no));
CREATE TABLE kept_edge (LIKE edge INCLUDING DEFAULTS, PRIMARY KEY (up, down));
CREATE INDEX kept_edge_down ON kept_edge (down, up);
CREATE TABLE kept_external (LIKE external INCLUDING DEFAULTS, PRIMARY KEY (dag_no, node_key, name));
CREATE TABLE kept_change (LIKE change INCLUDING DEFAULTS, PRIMARY KEY (dag_no, last_event));
-- One row for an ended DAG that retention has met. `due`: all its rows are in the hot tables; `moving`,
-- `thawing`: some are; `kept`: none is; `dropping`: its own row is gone, and what it had follows.
CREATE TABLE kept (
    dag_no bigint PRIMARY KEY,
    namespace text NOT NULL,
    finished_at timestamptz NOT NULL,
    phase text NOT NULL CHECK (phase IN ('due', 'moving', 'kept', 'thawing', 'dropping')),
    due_at timestamptz NOT NULL
);
CREATE INDEX kept_due ON kept (due_at) WHERE phase <> 'kept';
CREATE INDEX kept_old ON kept (finished_at, dag_no) WHERE phase = 'kept';
-- How far retention has read the ends, in their order; and up to which end each namespace is exported.
CREATE TABLE retention_mark (finished_at timestamptz NOT NULL, id uuid NOT NULL);
INSERT INTO retention_mark VALUES ('2000-01-01', '00000000-0000-0000-0000-000000000000');
CREATE TABLE export_mark (namespace text PRIMARY KEY, exported_until timestamptz NOT NULL);

-- Whatever cleans up or analyses a table writes what it found into the catalogue, and every plan of every
-- connection in which the table occurs is made anew at its next use (ADR 20). Statements are written so that no
-- plan depends on statistics, so there is little to be had from new ones.
DO $$
DECLARE
    name regclass;
BEGIN
    FOR name IN
        SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
        ORDER BY relname
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_analyze_threshold = 1000000)', name);
    END LOOP;
END $$;
"""


def upgrade() -> None:
    create_functions("dag")
    run_sql(TABLES)


def downgrade() -> None:
    raise NotImplementedError("revisions only go forward: write a new one")
