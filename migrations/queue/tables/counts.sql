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
    dead bigint NOT NULL, bytes bigint NOT NULL DEFAULT 0,
    -- When the counts last changed, or the topic was made or taken back. One without a row is not deleted.
    folded_at timestamptz NOT NULL DEFAULT shard_now()) WITH (fillfactor = 50);

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
