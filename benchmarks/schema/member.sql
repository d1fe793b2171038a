-- The membership tables, with statements cut down to what the state column's do: no `ended`, no completions.
-- They differ among each other in one thing each: how a claim finds its items, and how a lease is kept.

-- name: make_backlog()
-- Items of an hour ago, in order, with ids of the usual form.
CREATE FUNCTION backlog(first bigint, count int) RETURNS TABLE (id uuid, at timestamptz, payload text) LANGUAGE sql AS $$
    SELECT (lpad(to_hex(b.ms + i / 1000), 12, '0') || '7' || lpad(to_hex(i % 1000), 3, '0') || '8'
            || substr(md5(i::text), 1, 15))::uuid,
        b.at + i * interval '1 microsecond', '"' || repeat('x', 126) || '"'
    FROM generate_series(first, first + count - 1) AS i,
        (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000 AS ms,
            clock_timestamp() - interval '1 hour' AS at) AS b
$$;
CREATE TABLE lease_row (
    id uuid PRIMARY KEY,
    token uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    namespace_id int NOT NULL,
    topic_id int NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lease_row_expiry ON lease_row (expires_at);

-- name: member_enqueue(ids, payloads, topic_id)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
i AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT u.id, 1, $3::int, 0, 60, u.payload, n.at, n.at, 0, false, false, false
    FROM n, unnest($1::uuid[], $2::text[]) AS u(id, payload)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, topic_id, priority, deliver_at),
r AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM i),
s AS (INSERT INTO stat_delta SELECT $3::int, count(*), 0, 0, 0, 0 FROM i)
SELECT at FROM n;

-- name: claim_from_head(topic_id, limit, token, lease_s)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
g AS MATERIALIZED (
    DELETE FROM ready r USING item i, n
    WHERE r.ctid = ANY (ARRAY(
            SELECT ctid FROM ready WHERE topic_id = $1::int
            ORDER BY priority, deliver_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED))
        AND i.id = r.id
    RETURNING i.id, i.payload, i.metadata, i.inputs, i.headers, i.priority, i.attempts, i.enqueued_at,
        n.at + make_interval(secs => $4::float8) AS lease_until),
l AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)
    SELECT $3::uuid, lease_until, 1, $1::int, array_agg(id) FROM g GROUP BY lease_until),
s AS (INSERT INTO stat_delta SELECT $1::int, -count(*), 0, count(*), 0, 0 FROM g)
SELECT id::text, payload, metadata, inputs, headers, priority, attempts + 1 AS attempt, lease_until, enqueued_at
FROM g;

-- name: claim_by_keys(ids, topic_id, token, lease_s)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
g AS MATERIALIZED (
    DELETE FROM ready r USING unnest($1::uuid[]) AS w(id), item i, n
    WHERE i.id = w.id AND r.topic_id = i.topic_id AND r.priority = i.priority AND r.deliver_at = i.deliver_at
        AND r.id = i.id
    RETURNING i.id, i.payload, i.metadata, i.inputs, i.headers, i.priority, i.attempts, i.enqueued_at,
        n.at + make_interval(secs => $4::float8) AS lease_until),
l AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)
    SELECT $3::uuid, lease_until, 1, $2::int, array_agg(id) FROM g GROUP BY lease_until),
s AS (INSERT INTO stat_delta SELECT $2::int, -count(*), 0, count(*), 0, 0 FROM g)
SELECT id::text, payload, metadata, inputs, headers, priority, attempts + 1 AS attempt, lease_until, enqueued_at
FROM g;

-- name: claim_by_keys_into_rows(ids, topic_id, token, lease_s)
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
g AS MATERIALIZED (
    DELETE FROM ready r USING unnest($1::uuid[]) AS w(id), item i, n
    WHERE i.id = w.id AND r.topic_id = i.topic_id AND r.priority = i.priority AND r.deliver_at = i.deliver_at
        AND r.id = i.id
    RETURNING i.id, i.payload, i.metadata, i.inputs, i.headers, i.priority, i.attempts, i.enqueued_at,
        n.at + make_interval(secs => $4::float8) AS lease_until),
l AS (
    INSERT INTO lease_row (id, token, expires_at, namespace_id, topic_id)
    SELECT id, $3::uuid, lease_until, 1, $2::int FROM g),
s AS (INSERT INTO stat_delta SELECT $2::int, -count(*), 0, count(*), 0, 0 FROM g)
SELECT id::text, payload, metadata, inputs, headers, priority, attempts + 1 AS attempt, lease_until, enqueued_at
FROM g;

-- name: ack_groups(ids, tokens, topic_id)
WITH g AS MATERIALIZED (
    SELECT token, ids FROM lease
    WHERE token = ANY (ARRAY(SELECT DISTINCT unnest($2::uuid[]))) ORDER BY token FOR UPDATE),
h AS MATERIALIZED (
    SELECT id, token FROM unnest($1::uuid[], $2::uuid[]) AS w(id, token)
    INTERSECT
    SELECT m.id, g.token FROM g, unnest(g.ids) AS m(id)),
d AS (DELETE FROM item i USING h WHERE i.id = h.id RETURNING i.id),
s AS (INSERT INTO stat_delta SELECT $3::int, 0, 0, -count(*), 0, 0 FROM d)
SELECT count(*) AS acked FROM d;

-- name: ack_rows(ids, tokens, topic_id)
WITH h AS MATERIALIZED (
    DELETE FROM lease_row l USING unnest($1::uuid[], $2::uuid[]) AS w(id, token)
    WHERE l.id = w.id AND l.token = w.token
    RETURNING l.id),
d AS (DELETE FROM item i USING h WHERE i.id = h.id RETURNING i.id),
s AS (INSERT INTO stat_delta SELECT $3::int, 0, 0, -count(*), 0, 0 FROM d)
SELECT count(*) AS acked FROM d;

-- name: member_fill(topic_id, first, count)
WITH i AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT f.id, 1, $1::int, 0, 60, f.payload, f.at, f.at, 0, false, false, false
    FROM backlog($2::bigint, $3::int) AS f
    RETURNING topic_id, priority, deliver_at, id)
INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM i;

-- name: ended_fill(first, count)
-- What a busy id window leaves in `ended`.
INSERT INTO ended (id, namespace_id, outcome)
SELECT f.id, 1, 'acked' FROM backlog($1::bigint, $2::int) AS f;
