-- What may be handed out of topics that have limits. Nothing here is on the way of others.

-- name: topic_limits()
-- A topic that is throttled has a gate meanwhile, also without limits; limits are newer than its time.
SELECT n.name AS namespace, t.name AS topic, t.limits, t.limits_at
FROM (SELECT namespace_id, name, limits, limits_at FROM topic WHERE limits IS NOT NULL) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
UNION ALL
SELECT namespace, topic, '{}', 'epoch' FROM topic_gate WHERE slow_until > (SELECT shard_now());

-- name: lock_gate(namespace, topic, slot)
-- The gate of a topic, made where there is none; nothing where the slot is not at home here (any more).
INSERT INTO topic_gate AS g (namespace, topic, filled_at)
SELECT $1::text, $2::text, shard_now() WHERE coalesce((SELECT slots FROM shard) @> $3::int, true)
ON CONFLICT (namespace, topic) DO UPDATE SET topic = excluded.topic
RETURNING g.tokens, g.filled_at, g.slow_until, g.granted, g.leased, shard_now() AS at;

-- name: leased_of(namespace, topic)
-- How many items of a topic are leased here, exactly: folded, and appended since.
WITH here AS MATERIALIZED (
    SELECT t.topic_id FROM topic t JOIN namespace n ON n.namespace_id = t.namespace_id
    WHERE n.name = $1::text AND t.name = $2::text)
SELECT coalesce(sum(leased), 0)::bigint AS leased FROM (
    SELECT leased FROM topic_stat WHERE topic_id = (SELECT topic_id FROM here)
    UNION ALL
    SELECT leased FROM stat_delta WHERE topic_id = (SELECT topic_id FROM here)) AS parts;

-- name: keep_gate(namespace, topic, tokens, filled_at, granted, leased)
UPDATE topic_gate SET tokens = $3::float8, filled_at = $4::timestamptz, granted = $5::text, leased = $6::text
WHERE namespace = $1::text AND topic = $2::text;

-- name: slow_gate(namespace, topic, slot, slow_s)
-- Nothing of the topic is handed out for so long; the later end stands. Gates that were left long ago, and are as if
-- made anew, are removed.
WITH left_gate AS (
    SELECT namespace, topic FROM topic_gate
    WHERE slow_until < (SELECT shard_now()) - interval '1 hour' AND topic <> $2::text
        AND tokens IS NULL AND granted = '{}' AND leased = '{}'
    ORDER BY slow_until LIMIT 10
    FOR UPDATE SKIP LOCKED),
removed AS (
    DELETE FROM topic_gate AS g USING left_gate
    WHERE g.namespace = left_gate.namespace AND g.topic = left_gate.topic)
INSERT INTO topic_gate AS g (namespace, topic, filled_at, slow_until)
SELECT $1::text, $2::text, shard_now(), shard_now() + make_interval(secs => $4::float8)
WHERE coalesce((SELECT slots FROM shard) @> $3::int, true)
ON CONFLICT (namespace, topic) DO UPDATE SET slow_until = greatest(g.slow_until, excluded.slow_until)
RETURNING g.slow_until;
