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
    content bytea,                            -- of one with a key: a digest of the call that made it
    tolerated int NOT NULL DEFAULT 0,         -- failed nodes whose failure does not fail it
    workflow text,                            -- the type of the workflow whose run it is; node 0 is the decider
    ends_as text,
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
    tolerate boolean NOT NULL DEFAULT false,  -- its failure does not fail its DAG
    timer boolean NOT NULL DEFAULT false,     -- it has no item, and succeeds when its time has come
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
-- Events that were resolved and that no node has declared.
CREATE INDEX external_undeclared ON external (dag_no, node_key, name) WHERE NOT declared;

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
    -- Up to which generation of the other node all is undone, and the last success of that node that a retry has
    -- replaced and that nothing has undone.
    undone_generation int NOT NULL DEFAULT 0,
    done_generation int NOT NULL DEFAULT 0,
    done_released_at timestamptz,
    done_finished_at timestamptz,
    done_payload text,
    done_output text,
    PRIMARY KEY (dag_no, node_no)
);
CREATE INDEX cleanup_wave ON cleanup (dag_no, wave) WHERE wave IS NOT NULL;
CREATE INDEX cleanup_of ON cleanup (of_no) WHERE of_no IS NOT NULL;

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
