-- One row per item with a state column: what the membership tables are compared with.

-- name: make_state()
CREATE TABLE state_item (
    LIKE item INCLUDING ALL,
    state smallint NOT NULL,                  -- 0 ready, 1 leased
    token uuid,
    lease_until timestamptz) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX state_item_ready ON state_item (topic_id, priority, deliver_at, id) WHERE state = 0;
CREATE INDEX state_item_leased ON state_item (lease_until) WHERE state = 1;

-- name: state_enqueue(ids, payloads, topic_id)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
i AS (
    INSERT INTO state_item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at,
        max_attempts, at_most_once, managed, remembered, state)
    SELECT u.id, 1, $3::int, 0, 60, u.payload, n.at, n.at, 0, false, false, false, 0
    FROM n, unnest($1::uuid[], $2::text[]) AS u(id, payload)
    ON CONFLICT (id) DO NOTHING
    RETURNING id),
s AS (INSERT INTO stat_delta SELECT $3::int, count(*), 0, 0, 0, 0 FROM i)
SELECT at FROM n;

-- name: state_claim(topic_id, limit, token, lease_s)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
g AS MATERIALIZED (
    UPDATE state_item i SET state = 1, token = $3::uuid, lease_until = n.at + make_interval(secs => $4::float8)
    FROM n
    WHERE i.id = ANY (ARRAY(
        SELECT id FROM state_item WHERE topic_id = $1::int AND state = 0
        ORDER BY priority, deliver_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED))
    RETURNING i.id, i.token, i.payload, i.metadata, i.inputs, i.headers, i.priority, i.attempts, i.enqueued_at,
        i.lease_until),
s AS (INSERT INTO stat_delta SELECT $1::int, -count(*), 0, count(*), 0, 0 FROM g)
SELECT id::text, token::text, payload, metadata, inputs, headers, priority, attempts + 1 AS attempt, lease_until,
    enqueued_at
FROM g;

-- name: state_ack(ids, tokens, topic_id)
WITH d AS (
    DELETE FROM state_item i USING unnest($1::uuid[], $2::uuid[]) AS w(id, token)
    WHERE i.id = w.id AND i.token = w.token AND i.state = 1
    RETURNING i.id),
s AS (INSERT INTO stat_delta SELECT $3::int, 0, 0, -count(*), 0, 0 FROM d)
SELECT count(*) AS acked FROM d;

-- name: state_fill(topic_id, first, count)
INSERT INTO state_item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
    at_most_once, managed, remembered, state)
SELECT f.id, 1, $1::int, 0, 60, f.payload, f.at, f.at, 0, false, false, false, 0
FROM backlog($2::bigint, $3::int) AS f;
