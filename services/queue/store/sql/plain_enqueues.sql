-- Items that come in with nothing but the common fields, which most do: half of what `enqueue` sets up is for the
-- others, and is paid by every flush.

-- name: enqueue_plain(namespaces, topics, topic_ids, priorities, lease_ss, lasts, payloads, ids)
-- One flush of enqueues whose ids were made here and that give nothing but the common fields: nothing to look up,
-- nothing to conflict with. A row of the arrays is a kind of item: where its ids end among `ids`, and its payloads,
-- joined by U+001E. A number that does not stand for its names is an error that says so, and nothing is taken in; the
-- topic is looked up by that number, since no index serves IS NOT DISTINCT FROM.
WITH kinds AS MATERIALIZED (
    SELECT u.*, n.at, ($8::uuid[])[coalesce(($6::int[])[u.nth - 1], 0) + 1:u.last] AS ids, coalesce((
            SELECT t.namespace_id FROM topic t
            WHERE t.topic_id = u.topic_id AND t.name IS NOT DISTINCT FROM u.topic AND t.retiring IS NULL
                AND u.namespace = (
                SELECT s.name FROM namespace s WHERE s.namespace_id = t.namespace_id)), refuse_void(u.topic_id)) AS namespace_id
    FROM (SELECT shard_now() AS at OFFSET 0) AS n,
        unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::float8[], $6::int[], $7::text[])
            WITH ORDINALITY AS u(namespace, topic, topic_id, priority, lease_s, last, payloads, nth)),
inserted AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT unnest(ids), namespace_id, topic_id, priority, lease_s, unnest(string_to_array(payloads, E'\x1e')), at, at,
        0,
        false, false, false
    FROM kinds),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, at, unnest(ids) FROM kinds),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, cardinality(ids), 0, 0, 0, 0, octet_length(payloads) - cardinality(ids) + 1 FROM kinds)
SELECT at FROM kinds LIMIT 1;

-- name: enqueue_named(namespaces, topics, topic_ids, priorities, lease_ss, lasts, payloads, ids, times_ms, window_ms, ahead_ms)
-- As `enqueue`, of items that have ids by their callers. A number that does not stand for its names is an error, as in
-- `enqueue_plain`.
WITH clock AS MATERIALIZED (
    SELECT at, (extract(epoch FROM at) * 1000)::bigint AS at_ms FROM (SELECT shard_now() AS at OFFSET 0) AS now),
kinds AS MATERIALIZED (
    SELECT u.*, clock.*, ($8::uuid[])[coalesce(($6::int[])[u.nth - 1], 0) + 1:u.last] AS ids,
        ($9::bigint[])[coalesce(($6::int[])[u.nth - 1], 0) + 1:u.last] AS times_ms, coalesce((
            SELECT t.namespace_id FROM topic t
            WHERE t.topic_id = u.topic_id AND t.name IS NOT DISTINCT FROM u.topic AND t.retiring IS NULL
                AND u.namespace = (
                SELECT s.name FROM namespace s WHERE s.namespace_id = t.namespace_id)), refuse_void(u.topic_id)) AS namespace_id
    FROM clock, unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::float8[], $6::int[], $7::text[])
        WITH ORDINALITY AS u(namespace, topic, topic_id, priority, lease_s, last, payloads, nth)),
inserted AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT id, namespace_id, topic_id, priority, lease_s, payload, at, at, 0, false, false, true
    FROM (
        SELECT kinds.*, unnest(kinds.ids) AS id, unnest(kinds.times_ms) AS time_ms,
            unnest(string_to_array(kinds.payloads, E'\x1e')) AS payload
        FROM kinds) AS arriving
    WHERE time_ms BETWEEN at_ms - $10::bigint AND at_ms + $11::bigint
    ON CONFLICT (id) DO NOTHING
    RETURNING id, topic_id, priority, enqueued_at, octet_length(payload) AS bytes),
ended_before AS MATERIALIZED (
    SELECT t.id FROM (SELECT array_agg(id) AS ids FROM inserted) AS r, take_back_ended(r.ids) AS t),
taken AS MATERIALIZED (SELECT * FROM inserted WHERE id <> ALL (ARRAY(SELECT id FROM ended_before))),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, enqueued_at, id FROM taken),
counted AS (
    INSERT INTO stat_delta SELECT topic_id, count(*), 0, 0, 0, 0, sum(bytes) FROM taken GROUP BY topic_id)
SELECT (SELECT at FROM clock) AS at,
    CASE WHEN (SELECT count(*) FROM taken) < cardinality($8::uuid[]) THEN ARRAY(SELECT id::text FROM taken) END AS taken;
