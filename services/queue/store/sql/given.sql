-- What is set for namespaces and topics: the same on every shard, see services/queue/operations/agreement.py. Each setting has the
-- time at which it was set; the newest stands, whoever brings it, and of two of one time the greater.

-- name: time_to_give(namespace, topic)
-- A time later than those of what is set here under these names.
SELECT greatest(shard_now(), (
    SELECT greatest(n.set_at, t.paused_at, t.min_share_at, t.limits_at) + interval '1 microsecond'
    FROM namespace n
    LEFT JOIN LATERAL (
        SELECT * FROM topic WHERE topic.namespace_id = n.namespace_id AND topic.name = $2::text OFFSET 0) AS t ON true
    WHERE n.name = $1::text)) AS at;

-- name: give_settings(namespaces, settings, set_ats)
INSERT INTO namespace (name, settings, declared, set_at)
SELECT u.name, u.settings, true, u.set_at
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS u(name, settings, set_at) ORDER BY u.name
ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, declared = true, set_at = excluded.set_at
WHERE namespace.set_at IS NULL OR (namespace.set_at, namespace.settings COLLATE "C") < (excluded.set_at,
    excluded.settings);

-- name: give_pauses(namespaces, topics, paused, set_ats)
INSERT INTO topic (namespace_id, name, paused, paused_at)
SELECT n.namespace_id, u.topic, u.paused, u.set_at
FROM unnest($1::text[], $2::text[], $3::bool[], $4::timestamptz[]) AS u(namespace, topic, paused, set_at)
CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = u.namespace OFFSET 0) AS n
ORDER BY n.namespace_id, u.topic
ON CONFLICT (namespace_id, name) DO UPDATE SET paused = excluded.paused, paused_at = excluded.paused_at, retiring = NULL
WHERE topic.paused_at IS NULL OR (topic.paused_at, topic.paused) < (excluded.paused_at, excluded.paused);

-- name: give_shares(namespaces, topics, min_shares, set_ats)
-- An empty text takes a minimum share away.
INSERT INTO topic (namespace_id, name, min_share, min_share_at)
SELECT n.namespace_id, u.topic, nullif(u.min_share, ''), u.set_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS u(namespace, topic, min_share, set_at)
CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = u.namespace OFFSET 0) AS n
ORDER BY n.namespace_id, u.topic
ON CONFLICT (namespace_id, name) DO UPDATE
SET min_share = excluded.min_share, min_share_at = excluded.min_share_at, retiring = NULL
WHERE topic.min_share_at IS NULL
    OR (topic.min_share_at, coalesce(topic.min_share, '') COLLATE "C")
        < (excluded.min_share_at, coalesce(excluded.min_share, ''));

-- name: give_limits(namespaces, topics, limits, set_ats)
-- An empty text takes limits away.
INSERT INTO topic (namespace_id, name, limits, limits_at)
SELECT n.namespace_id, u.topic, nullif(u.limits, ''), u.set_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS u(namespace, topic, limits, set_at)
CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = u.namespace OFFSET 0) AS n
ORDER BY n.namespace_id, u.topic
ON CONFLICT (namespace_id, name) DO UPDATE
SET limits = excluded.limits, limits_at = excluded.limits_at, retiring = NULL
WHERE topic.limits_at IS NULL
    OR (topic.limits_at, coalesce(topic.limits, '') COLLATE "C") < (excluded.limits_at, coalesce(excluded.limits, ''));

-- name: given_settings(after, limit)
SELECT namespace_id AS number, name AS namespace, settings, set_at FROM namespace
WHERE set_at IS NOT NULL AND namespace_id > $1::int ORDER BY namespace_id LIMIT $2::int;

-- name: given_to_topics(after, limit)
SELECT t.topic_id AS number, n.name AS namespace, t.name AS topic, t.paused, t.paused_at,
    coalesce(t.min_share, '') AS min_share, t.min_share_at, coalesce(t.limits, '') AS limits, t.limits_at
FROM (
    SELECT * FROM topic
    WHERE (paused_at IS NOT NULL OR min_share_at IS NOT NULL OR limits_at IS NOT NULL) AND topic_id > $1::int
    ORDER BY topic_id LIMIT $2::int) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
ORDER BY t.topic_id;
