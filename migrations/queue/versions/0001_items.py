"""Items, the narrow tables that say where each of them is, and what the service keeps beside them.

An item's facts are written once, in `item`. Which of `ready`, `deferred`, `parked` or `lease` holds its id
is its state; an item is in exactly one of them.
"""

from pathlib import Path

from migrations.script import create_functions, run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TYPES = """
CREATE TYPE acked_item AS (
    id uuid,
    topic_id int,
    remembered bool,
    idempotency_key text,
    namespace_id int,
    attempts int,
    managed bool,
    ack_topic_id int,
    ack_context text);
COMMENT ON TYPE acked_item IS 'Of an item that has ended by an ack, what somebody may ask for later.';

-- What an ack has made ready: a completion item, or (`revived`) an item that its end has opened. `token` where it
-- is leased at once, with what the holder is given; not `is_ready` where it is delayed, or waits for a place.
CREATE TYPE told AS (
    topic_id int, priority int, deliver_at timestamptz, id uuid, revived boolean, is_ready boolean, token uuid,
    lease_until timestamptz, payload text, metadata text, inputs text, headers text, attempt int,
    enqueued_at timestamptz, at_most_once boolean, dag text);
COMMENT ON TYPE told IS 'A row without a topic names a DAG, by its id, that has ended by the ack.';
"""

TABLES = r"""
-- Who this schema is and which slots it answers for, so that a host with an old map can do no harm. `state` is
-- `open`, or, in a schema that no service looks into: `incoming` (the copy of a move, not whole yet), `moving`
-- (fenced, the copy's source) and `moved`.
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    owner text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'open',
    move text,
    slots int4multirange);                    -- whose idempotency keys live here; NULL: as the environment's map
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);

-- Who owns the shard: one row, a lease. No index, so that renewals stay on the page.
CREATE TABLE shard_owner (
    owner text,                               -- NULL: given up
    epoch bigint NOT NULL,                    -- one more with each change of owner
    expires_at timestamptz NOT NULL,
    wanted_by text);                          -- who the balance gives it to, while another has it
INSERT INTO shard_owner VALUES (NULL, 0, clock_timestamp(), NULL);

CREATE TABLE namespace (
    namespace_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    settings text NOT NULL DEFAULT '{}',
    declared boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX namespace_limited ON namespace (namespace_id) WHERE settings <> '{}';
INSERT INTO namespace (name, declared) VALUES ('default', true), ('_dag', true);

CREATE TABLE topic (
    topic_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int NOT NULL,
    name text NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    min_share text,                           -- JSON: [[priority, share], ...]; NULL: none
    UNIQUE (namespace_id, name));
CREATE INDEX topic_paused ON topic (topic_id) WHERE paused;
CREATE INDEX topic_min_share ON topic (topic_id) WHERE min_share IS NOT NULL;

CREATE TABLE item (
    id uuid PRIMARY KEY,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    priority int NOT NULL,
    attempts int NOT NULL DEFAULT 0,          -- deliveries that ended without an ack and cost one
    max_attempts int NOT NULL,                -- 0: no end
    enqueued_at timestamptz NOT NULL,
    deliver_at timestamptz,                   -- its key in ready or deferred; NULL while disabled
    expires_at timestamptz,
    lease_s double precision NOT NULL,
    delay_s double precision,                 -- from revive, while disabled
    deliver_after timestamptz,                -- not before, while disabled
    ttl_s double precision,
    backoff double precision[],               -- base_s, factor, max_s, jitter; NULL: the default
    at_most_once boolean NOT NULL,
    managed boolean NOT NULL,                 -- a DAG's: changed through the DAG only
    remembered boolean NOT NULL,              -- leaves a row in ended
    ack_topic_id int,
    payload text NOT NULL,
    metadata text,
    inputs text,
    headers text,
    ack_context text,
    idempotency_key text,
    error text,
    fairness_key text)                        -- NULL: in no lane; '': in the lane of those without a key
    WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 50000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX item_expiry ON item (expires_at, id) WHERE expires_at IS NOT NULL;

CREATE TABLE ready (
    topic_id int NOT NULL,
    priority int NOT NULL,
    deliver_at timestamptz NOT NULL,
    id uuid NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_order ON ready (topic_id, priority, deliver_at, id);

CREATE TABLE deferred (
    due_at timestamptz NOT NULL,
    id uuid NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX deferred_due ON deferred (due_at, id);

CREATE TABLE parked (
    id uuid PRIMARY KEY,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    reason text NOT NULL,                     -- disabled, dead
    managed boolean NOT NULL,
    parked_at timestamptz NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX parked_age ON parked (parked_at) WHERE reason = 'dead';
-- The dead of a topic, and of a namespace, by the time of their death.
CREATE INDEX parked_dead ON parked (namespace_id, topic_id, parked_at) WHERE reason = 'dead';

-- One row per claimed group: the items of one dequeue call that share topic and end of lease. Ids that were
-- acked stay in the array until it ends: that is the memory behind `already_acked`.
CREATE TABLE lease (
    token uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    ids uuid[] NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT shard_now(),
    worker text) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lease_token ON lease (token);
CREATE INDEX lease_expiry ON lease (expires_at);

-- Deliveries of DAGs' items that failed. One that is acked writes nothing here: its end is the item's.
CREATE TABLE attempt (
    item_id uuid NOT NULL,
    namespace_id int NOT NULL,
    attempt int NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,                    -- failed, lease_expired, dead
    error text,
    worker text) WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX attempt_item ON attempt (item_id, ended_at);
CREATE INDEX attempt_age ON attempt (ended_at);

-- What is gone but must be remembered for the id window; swapped and truncated by age.
CREATE TABLE ended (id uuid PRIMARY KEY, namespace_id int NOT NULL, outcome text NOT NULL)
    WITH (autovacuum_enabled = false);
CREATE TABLE ended_old (LIKE ended INCLUDING ALL) WITH (autovacuum_enabled = false);
CREATE TABLE ended_rotation (rotated_at timestamptz NOT NULL);
INSERT INTO ended_rotation VALUES (clock_timestamp());
-- Cancels of ids never seen, per namespace since the last rotation: they are capped.
CREATE TABLE unseen_cancel (namespace_id int PRIMARY KEY, cancels int NOT NULL);

-- Looked up by whole keys, or walked by age; every ack has it in its plan.
CREATE TABLE dedup (
    namespace_id int NOT NULL,
    key text NOT NULL,
    id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    until timestamptz,                        -- NULL while the item lives
    lives_at int,                             -- the shard of its item, where the key came from another shard
    PRIMARY KEY (namespace_id, key))
    WITH (autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX dedup_until ON dedup (until) WHERE until IS NOT NULL;
CREATE INDEX dedup_elsewhere ON dedup (lives_at, namespace_id, key) WHERE lives_at IS NOT NULL;

-- Counts: appended in the transaction that changes them, folded off the hot path. Bytes are those of payloads,
-- which are written once with an item and never change.
CREATE TABLE stat_delta (
    topic_id int NOT NULL,
    ready int NOT NULL, delayed int NOT NULL, leased int NOT NULL, disabled int NOT NULL, dead int NOT NULL,
    bytes bigint NOT NULL DEFAULT 0)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE topic_stat (
    topic_id int PRIMARY KEY,
    ready bigint NOT NULL, delayed bigint NOT NULL, leased bigint NOT NULL, disabled bigint NOT NULL,
    dead bigint NOT NULL, bytes bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);

-- The next free place of each lane that has items waiting, or had until lately. A lane: items of one topic and
-- priority that share a fairness key and take turns with those of others.
CREATE TABLE lane (
    topic_id int NOT NULL,
    priority int NOT NULL,
    key text NOT NULL,
    next_at timestamptz NOT NULL,
    taken int NOT NULL,                       -- places given by the last statement
    PRIMARY KEY (topic_id, priority, key)) WITH (fillfactor = 50);
CREATE INDEX lane_next ON lane (topic_id, priority, next_at);
-- How far the lanes of a topic and priority have been served, on all shards together; about a second old. Where
-- there is one shard only, its own head says it exactly.
CREATE TABLE lane_clock (
    topic_id int NOT NULL,
    priority int NOT NULL,
    v_at timestamptz NOT NULL,
    is_shared boolean NOT NULL DEFAULT false,
    PRIMARY KEY (topic_id, priority)) WITH (fillfactor = 50);

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

-- Whatever cleans up or analyses a table writes what it found into the catalogue, and every plan of every
-- connection in which the table occurs is made anew at its next use (ADR 20). Statements are written so that no
-- plan depends on statistics, so there is little to be had from new ones. An insert threshold of -1:
-- inserts leave nothing to clean up, and by default a thousand of them are a reason.
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
    run_sql(TYPES)
    run_sql(Path(__file__).parents[1] / "functions" / "shard_now.sql")  # a default of columns
    run_sql(TABLES)
    create_functions("queue")  # whose arguments may be rows of tables


def downgrade() -> None:
    raise NotImplementedError("revisions only go forward: write a new one")
