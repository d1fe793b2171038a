-- The last run of each id, on the shard that the id has its home on. Its row lock is the lock of the id.
CREATE TABLE workflow (
    namespace text NOT NULL,
    id text NOT NULL,
    dag_id uuid NOT NULL,
    PRIMARY KEY (namespace, id)
);

-- One row a run, under the lock of its DAG's row. `input`, `output`, `received`, `markers`, `made_by`, `stuck` are
-- JSON text.
CREATE TABLE run (
    dag_no bigint PRIMARY KEY,
    namespace text NOT NULL,
    dag_id uuid NOT NULL,
    workflow_id text NOT NULL,
    type text NOT NULL,
    version text,
    input text,
    priority int NOT NULL,
    state text NOT NULL DEFAULT 'running',
    secret_hash bytea NOT NULL,               -- of what the decider's item carries, in this generation
    turn bigint NOT NULL DEFAULT 0,           -- turns that were written, and the digest of the last one's body
    turn_digest bytea,
    seen bigint NOT NULL DEFAULT 0,           -- the last event of which every command is written
    last_event bigint NOT NULL DEFAULT 0,
    last_told bigint NOT NULL DEFAULT 0,      -- the last event that code is told of
    open_steps text[] NOT NULL DEFAULT '{}',  -- written without a result yet
    signals int NOT NULL DEFAULT 0,
    received text NOT NULL DEFAULT '{}',
    received_total int NOT NULL DEFAULT 0,
    markers text NOT NULL DEFAULT '{}',
    made_by text,
    cancel_requested boolean NOT NULL DEFAULT false,
    stuck text,
    stuck_attempts int NOT NULL DEFAULT 0,
    stuck_since timestamptz,
    output text,
    error text,
    continued_as uuid,
    CONSTRAINT run_state CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled', 'continued'))
) WITH (fillfactor = 50);
CREATE INDEX run_listed ON run (namespace, dag_id);
CREATE INDEX run_listed_by_type ON run (namespace, type, dag_id);
CREATE INDEX run_listed_by_state ON run (namespace, state, dag_id);
CREATE INDEX run_stuck ON run (namespace, dag_id) WHERE stuck IS NOT NULL;

-- What code is told, and what it has asked for, in one order. Rows are never changed.
CREATE TABLE event (
    dag_no bigint NOT NULL,
    event bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT shard_now(),
    kind text NOT NULL,
    key text NOT NULL,
    generation int NOT NULL DEFAULT 1,
    state text NOT NULL,
    output text,
    error text,
    data text,
    after bigint,                             -- of a record: the event whose code asked for it
    PRIMARY KEY (dag_no, event)
);
-- What is asked for and is no node.
CREATE UNIQUE INDEX event_step ON event (dag_no, key) WHERE after IS NOT NULL AND kind = 'step';

-- How many signals of each name a run was sent, and their ids.
CREATE TABLE signal_count (
    dag_no bigint NOT NULL,
    name text NOT NULL,
    sent int NOT NULL,
    PRIMARY KEY (dag_no, name)
) WITH (fillfactor = 70);
CREATE TABLE signal_id (
    dag_no bigint NOT NULL,
    id text NOT NULL,
    PRIMARY KEY (dag_no, id)
);

CREATE TABLE published (
    dag_no bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    event bigint NOT NULL,
    PRIMARY KEY (dag_no, key)
) WITH (fillfactor = 70);
