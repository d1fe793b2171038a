-- What may be handed out of topics that have limits. Nothing here is on the way of others.

-- name: topic_limits()
-- A topic that is throttled, or a key of it, has a gate meanwhile, also without limits; limits are newer than its time.
SELECT n.name AS namespace, t.name AS topic, t.limits, t.limits_at, false AS topic_slow, false AS key_slow
FROM (SELECT namespace_id, name, limits, limits_at FROM topic WHERE limits IS NOT NULL) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
UNION ALL
SELECT namespace, topic, '{}', 'epoch', bool_or(key = ''), bool_or(key <> '')
FROM topic_gate WHERE slow_until > (SELECT shard_now()) GROUP BY topic_gate.namespace, topic_gate.topic;

-- name: lifted_limits(namespaces, topics)
-- Of these topics those whose limits were taken away, and when.
SELECT w.namespace, w.topic, t.limits_at
FROM unnest($1::text[], $2::text[]) AS w(namespace, topic)
CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = w.namespace OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT limits, limits_at FROM topic WHERE topic.namespace_id = n.namespace_id AND topic.name = w.topic
    OFFSET 0) AS t
WHERE t.limits IS NULL AND t.limits_at IS NOT NULL;

-- name: lock_gate(namespace, topic, slot)
-- The gate of a topic, made where there is none; nothing where the slot is not at home here (any more).
INSERT INTO topic_gate AS g (namespace, topic, filled_at)
SELECT $1::text, $2::text, shard_now() WHERE coalesce((SELECT slots FROM shard) @> $3::int, true)
ON CONFLICT (namespace, topic, key) DO UPDATE SET topic = excluded.topic
RETURNING g.tokens, g.filled_at, g.slow_until, g.granted, g.leased, shard_now() AS at;

-- name: leased_of(namespace, topic)
-- How many items of a topic are leased here, exactly: folded, and appended since.
WITH here AS MATERIALIZED (
    SELECT topic_id FROM topic
    WHERE namespace_id = (SELECT namespace_id FROM namespace WHERE namespace.name = $1::text)
        AND topic.name = $2::text)
SELECT coalesce(sum(leased), 0)::bigint AS leased FROM (
    SELECT leased FROM topic_stat WHERE topic_id = (SELECT topic_id FROM here)
    UNION ALL
    SELECT leased FROM stat_delta WHERE topic_id = (SELECT topic_id FROM here)) AS parts;

-- name: keep_gate(namespace, topic, tokens, filled_at, granted, leased)
UPDATE topic_gate SET tokens = $3::float8, filled_at = $4::timestamptz, granted = $5::text, leased = $6::text
WHERE namespace = $1::text AND topic = $2::text AND key = '';

-- name: fairness_keys_of(ids)
SELECT i.id::text, i.fairness_key
FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (SELECT item.id, item.fairness_key FROM item WHERE item.id = w.id OFFSET 0) AS i;

-- name: lock_key_gates(namespace, topic, keys, slot)
-- The gates of keys of a topic, made where there are none, in the order in which all lock them.
INSERT INTO topic_gate AS g (namespace, topic, key, filled_at)
SELECT $1::text, $2::text, u.key, shard_now() FROM unnest($3::text[]) AS u(key)
WHERE coalesce((SELECT slots FROM shard) @> $4::int, true)
ORDER BY u.key
ON CONFLICT (namespace, topic, key) DO UPDATE SET topic = excluded.topic
RETURNING g.key, g.tokens, g.filled_at, g.slow_until, g.held, shard_now() AS at;

-- name: keep_key_gates(namespace, topic, keys, tokens, filled_ats, helds, idle_ats)
UPDATE topic_gate AS g SET tokens = f.tokens, filled_at = f.filled_at, held = f.held, idle_at = f.idle_at
FROM (
    SELECT u.tokens, u.filled_at, u.held, u.idle_at, x.place
    FROM unnest($3::text[], $4::float8[], $5::timestamptz[], $6::text[], $7::timestamptz[])
        AS u(key, tokens, filled_at, held, idle_at)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM topic_gate
        WHERE topic_gate.namespace = $1::text AND topic_gate.topic = $2::text AND topic_gate.key = u.key OFFSET 0) AS x
    ) AS f
WHERE g.ctid = f.place;

-- name: slow_keys(namespace, topic, keys)
-- Which of these keys are throttled, and for how long yet.
SELECT x.key, extract(epoch FROM x.slow_until - shard_now())::float8 AS slow_s
FROM unnest($3::text[]) AS u(key)
CROSS JOIN LATERAL (
    SELECT topic_gate.key, topic_gate.slow_until FROM topic_gate
    WHERE topic_gate.namespace = $1::text AND topic_gate.topic = $2::text AND topic_gate.key = u.key
        AND topic_gate.slow_until > (SELECT shard_now()) OFFSET 0) AS x;

-- name: leased_among(ids)
-- Which of these items are leased here: those in no other place.
SELECT i.id::text
FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT item.id, item.topic_id, item.priority, item.deliver_at FROM item WHERE item.id = w.id OFFSET 0) AS i
WHERE NOT EXISTS (
        SELECT FROM ready WHERE ready.topic_id = i.topic_id AND ready.priority = i.priority
            AND ready.deliver_at = i.deliver_at AND ready.id = i.id OFFSET 0)
    AND NOT EXISTS (SELECT FROM deferred WHERE deferred.due_at = i.deliver_at AND deferred.id = i.id OFFSET 0)
    AND NOT EXISTS (SELECT FROM parked WHERE parked.id = i.id OFFSET 0);

-- name: slow_gate(namespace, topic, slot, slow_s, key)
-- Nothing of the topic, or of the key of it, is handed out for so long; the later end stands.
INSERT INTO topic_gate AS g (namespace, topic, key, filled_at, slow_until, idle_at)
SELECT $1::text, $2::text, $5::text, shard_now(), shard_now() + make_interval(secs => $4::float8),
    shard_now() + make_interval(secs => $4::float8)
WHERE coalesce((SELECT slots FROM shard) @> $3::int, true)
ON CONFLICT (namespace, topic, key) DO UPDATE SET slow_until = greatest(g.slow_until, excluded.slow_until),
    idle_at = greatest(g.idle_at, excluded.idle_at)
RETURNING g.slow_until;

-- name: throttles_of(namespace, topic, limit)
-- What is throttled of a topic: itself (an empty key), and keys.
SELECT key, slow_until FROM topic_gate
WHERE namespace = $1::text AND topic = $2::text AND slow_until IS NOT NULL AND slow_until > (SELECT shard_now())
ORDER BY topic_gate.namespace, topic_gate.topic, topic_gate.key LIMIT $3::int;

-- name: lift_throttles(namespace, topic, slot, key)
-- Of a topic and all its keys, or of one key; whether the slot is at home here.
WITH here AS MATERIALIZED (SELECT coalesce((SELECT slots FROM shard) @> $3::int, true) AS is_home),
lifted AS (
    UPDATE topic_gate SET slow_until = NULL
    WHERE namespace = $1::text AND topic = $2::text AND slow_until IS NOT NULL
        AND ($4::text IS NULL OR key = $4::text) AND (SELECT is_home FROM here))
SELECT is_home FROM here;

-- name: idle_gates(limit)
-- Gates that are as if made anew, but for the items that those of keys may still hold; locked.
SELECT namespace, topic, key, held FROM topic_gate
WHERE idle_at < (SELECT shard_now()) AND (slow_until IS NULL OR slow_until < (SELECT shard_now()))
    AND (key <> '' OR (tokens IS NULL AND granted = '{}' AND leased = '{}'))
ORDER BY topic_gate.idle_at LIMIT $1::int FOR UPDATE SKIP LOCKED;

-- name: end_gates(namespaces, topics, keys, helds)
-- Those that hold nothing are removed; others are looked at again in a while.
WITH judged AS MATERIALIZED (
    SELECT u.held, x.place
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u(namespace, topic, key, held)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM topic_gate
        WHERE topic_gate.namespace = u.namespace AND topic_gate.topic = u.topic AND topic_gate.key = u.key
        OFFSET 0) AS x),
kept AS (
    UPDATE topic_gate AS g SET held = judged.held, idle_at = shard_now() + interval '10 minutes'
    FROM judged WHERE g.ctid = judged.place AND judged.held <> '{}')
DELETE FROM topic_gate AS g USING judged WHERE g.ctid = judged.place AND judged.held = '{}';
