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
    fairness_key text,                        -- NULL: in no lane; '': in the lane of those without a key
    ready_at timestamptz,                     -- written with its place in a lane; NULL in no lane: as deliver_at
    -- No lease of a delivery goes on for longer than `timeout_s`, and where `is_deadline` none past `expires_at`.
    timeout_s float8,
    is_deadline bool)
    WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 50000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX item_expiry ON item (expires_at, id) WHERE expires_at IS NOT NULL;
-- Items whose end is to be told in a topic. Those of DAGs tell it in the system's topics, which are never deleted.
CREATE INDEX item_ack_topic ON item (ack_topic_id) WHERE ack_topic_id IS NOT NULL AND NOT managed;

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
    worker text,
    -- How far its holder has come, as JSON text, of all items of the group, and when that was told.
    progress text,
    progress_at timestamptz) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
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
