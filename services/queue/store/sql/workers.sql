-- Workers by name, and what was cancelled under their leases.

-- name: write_workers(namespaces, names, hosts, versions, topics, running, reported, ages_s, seen_ages_s, alive_ss, rows_max)
-- A namespace has so many rows here at most. A worker that reports itself is known by its last report; of others topics
-- are added up, over all processes that have seen them.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
seen AS MATERIALIZED (
    SELECT w.*, row_number() OVER (PARTITION BY w.namespace ORDER BY w.name) AS nth
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::bool[], $8::float8[],
            $9::float8[], $10::float8[])
        AS w(namespace, name, host, version, topics, running, is_reported, age_s, seen_age_s, alive_s))
INSERT INTO worker AS known
    (namespace, name, host, version, topics, running, is_reported, since, seen_at, alive_until)
SELECT seen.namespace, seen.name, seen.host, seen.version, seen.topics, seen.running, seen.is_reported,
    clock.at - make_interval(secs => seen.age_s), clock.at - make_interval(secs => seen.seen_age_s),
    clock.at + make_interval(secs => seen.alive_s)
FROM seen, clock
WHERE EXISTS (SELECT FROM worker WHERE worker.namespace = seen.namespace AND worker.name = seen.name OFFSET 0)
    OR seen.nth + (SELECT count(*) FROM worker WHERE worker.namespace = seen.namespace) <= $11::int
ORDER BY seen.namespace, seen.name
ON CONFLICT (namespace, name) DO UPDATE SET host = excluded.host, version = excluded.version,
    running = excluded.running, is_reported = excluded.is_reported, seen_at = excluded.seen_at,
    topics = CASE WHEN excluded.is_reported OR known.alive_until <= excluded.seen_at THEN excluded.topics ELSE (
        SELECT coalesce(jsonb_agg(t), '[]') FROM (
            SELECT DISTINCT t FROM jsonb_array_elements(known.topics::jsonb || excluded.topics::jsonb) AS e(t)
            ORDER BY t LIMIT 100) AS d)::text END,
    since = CASE WHEN excluded.is_reported OR known.alive_until <= excluded.seen_at THEN excluded.since
        ELSE least(known.since, excluded.since) END,
    alive_until = CASE WHEN excluded.is_reported THEN excluded.alive_until
        ELSE greatest(known.alive_until, excluded.alive_until) END
WHERE (excluded.is_reported AND excluded.seen_at >= known.seen_at) OR NOT known.is_reported;

-- name: workers_page(namespace, after, limit, bytes_max)
-- As many as come before their topics take so many bytes together, and one.
SELECT name, host, version, topics, running, since, seen_at, alive_until > (SELECT shard_now()) AS is_alive
FROM (
    SELECT *, sum(octet_length(topics)) OVER (ORDER BY name) - octet_length(topics) AS bytes_before FROM (
        SELECT name, host, version, topics, running, since, seen_at, alive_until
        FROM worker WHERE namespace = $1 AND name > $2 ORDER BY name LIMIT $3::int) AS page) AS sized
WHERE bytes_before < $4::int ORDER BY name;

-- name: drop_workers(age_s, limit)
DELETE FROM worker WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM worker WHERE alive_until <= (SELECT shard_now()) - make_interval(secs => $1::float8)
    LIMIT $2::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: cancelled_lately(window_s, limit)
-- Newest first. A time is that of a transaction's work, and not of its commit: who asks again asks of a while before, too.
SELECT namespace.name AS namespace, c.item_id::text
FROM (
    SELECT item_id, namespace_id, at FROM cancelled_lease
    WHERE at > (SELECT shard_now()) - make_interval(secs => $1::float8) ORDER BY at DESC LIMIT $2::int) AS c
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = c.namespace_id OFFSET 0) AS namespace
ORDER BY c.at DESC;

-- name: drop_cancelled(age_s, limit)
DELETE FROM cancelled_lease WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM cancelled_lease WHERE at <= (SELECT shard_now()) - make_interval(secs => $1::float8)
    ORDER BY at LIMIT $2::int FOR UPDATE SKIP LOCKED))
RETURNING 1;
