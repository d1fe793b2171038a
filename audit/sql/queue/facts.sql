-- A queue shard by itself. Read in one snapshot, in stretches of ids.

-- name: leased_ids()
-- Items that are leased, and under how many leases; a lease remembers, too, what was acked under it.
SELECT l.id::text, count(*)::int AS leases
FROM (SELECT unnest(ids) AS id, claimed_at FROM lease) AS l
CROSS JOIN LATERAL (SELECT remembered, managed, enqueued_at FROM item WHERE item.id = l.id OFFSET 0) AS i
WHERE NOT i.remembered OR i.managed OR i.enqueued_at <= l.claimed_at
GROUP BY l.id;

-- name: items_page(after_id, rows_max)
-- The next items and in how many of the queues each is; one in none must be leased.
SELECT i.id::text, (SELECT count(*) FROM ready r WHERE r.topic_id = i.topic_id AND r.priority = i.priority
            AND r.deliver_at = i.deliver_at AND r.id = i.id)
        + (SELECT count(*) FROM deferred d WHERE d.due_at = i.deliver_at AND d.id = i.id)
        + (SELECT count(*) FROM parked p WHERE p.id = i.id) AS places
FROM (SELECT * FROM item WHERE id > $1::uuid ORDER BY id LIMIT $2) AS i ORDER BY i.id;

-- name: empty_places(rows_max)
(SELECT id::text, 'ready' AS place FROM ready r WHERE NOT EXISTS (
    SELECT FROM item i WHERE i.id = r.id AND i.topic_id = r.topic_id AND i.priority = r.priority
        AND i.deliver_at = r.deliver_at OFFSET 0) LIMIT $1)
UNION ALL
(SELECT id::text, 'deferred' FROM deferred d WHERE NOT EXISTS (
    SELECT FROM item i WHERE i.id = d.id AND i.deliver_at = d.due_at OFFSET 0) LIMIT $1)
UNION ALL
(SELECT id::text, 'parked' FROM parked p WHERE NOT EXISTS (
    SELECT FROM item i WHERE i.id = p.id OFFSET 0) LIMIT $1);

-- name: wrong_counts()
-- Topics whose counts disagree with the rows, and by how much: what to add to the counts.
WITH facts AS (
    SELECT topic_id, count(*) AS ready, 0::bigint AS delayed, 0::bigint AS leased, 0::bigint AS disabled,
        0::bigint AS dead, 0::bigint AS bytes FROM ready GROUP BY topic_id
    UNION ALL
    SELECT i.topic_id, 0, count(*), 0, 0, 0, 0 FROM deferred d
    CROSS JOIN LATERAL (SELECT topic_id FROM item WHERE item.id = d.id OFFSET 0) AS i GROUP BY i.topic_id
    UNION ALL
    SELECT topic_id, 0, 0, 0, count(*) FILTER (WHERE reason = 'disabled'), count(*) FILTER (WHERE reason = 'dead'), 0
    FROM parked GROUP BY topic_id
    UNION ALL
    SELECT i.topic_id, 0, 0, count(*), 0, 0, 0
    FROM (SELECT DISTINCT unnest(ids) AS id FROM lease) AS l
    CROSS JOIN LATERAL (SELECT topic_id FROM item WHERE item.id = l.id OFFSET 0) AS i GROUP BY i.topic_id
    UNION ALL
    SELECT topic_id, 0, 0, 0, 0, 0, sum(octet_length(payload)) FROM item GROUP BY topic_id),
sums AS (
    SELECT topic_id, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, sum(disabled) AS disabled,
        sum(dead) AS dead, sum(bytes) AS bytes
    FROM (SELECT * FROM facts
        UNION ALL SELECT topic_id, -ready, -delayed, -leased, -disabled, -dead, -bytes FROM topic_stat
        UNION ALL SELECT topic_id, -ready, -delayed, -leased, -disabled, -dead, -bytes FROM stat_delta) AS both_sides
    GROUP BY topic_id)
SELECT s.topic_id, n.name AS namespace, t.name AS topic, s.ready::bigint, s.delayed::bigint, s.leased::bigint,
    s.disabled::bigint, s.dead::bigint, s.bytes::bigint
FROM sums s
CROSS JOIN LATERAL (SELECT namespace_id, name FROM topic WHERE topic.topic_id = s.topic_id OFFSET 0) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
WHERE (s.ready, s.delayed, s.leased, s.disabled, s.dead, s.bytes) <> (0, 0, 0, 0, 0, 0);

-- name: item_facts(ids)
-- What the queue knows of these items: whether they live, where they are parked, how they ended.
SELECT w.id::text, i.id IS NOT NULL AS lives, p.reason AS parked, i.attempts, i.error,
    (SELECT outcome FROM ended e WHERE e.id = w.id UNION ALL SELECT outcome FROM ended_old e WHERE e.id = w.id LIMIT 1)
        AS outcome
FROM unnest($1::uuid[]) AS w(id)
LEFT JOIN LATERAL (SELECT id, attempts, error FROM item WHERE item.id = w.id OFFSET 0) AS i ON true
LEFT JOIN LATERAL (SELECT reason FROM parked WHERE parked.id = w.id OFFSET 0) AS p ON true;

-- name: waiting_completions(ids)
-- Which of these have a completion that the DAG service has not taken to its end.
-- A payload of somebody else's may be what Postgres takes for no JSON; a completion's begins with the item's id.
SELECT c.item_id AS id, p.reason
FROM (
    SELECT id, substr(payload, 8, 36) AS item_id FROM item WHERE topic_id = ANY (ARRAY(
        SELECT topic_id FROM topic
        WHERE namespace_id = (SELECT namespace_id FROM namespace WHERE name = '_dag') AND name LIKE 'acks/%'))
    OFFSET 0) AS c
LEFT JOIN LATERAL (SELECT reason FROM parked WHERE parked.id = c.id OFFSET 0) AS p ON true
WHERE c.item_id = ANY ($1::text[]);

-- name: managed_page(after_id, age_s, since, rows_max)
-- DAGs' items that can still run, written for long; `last` ends the stretch.
SELECT i.id::text, i.ack_context, n.name AS namespace,
    i.managed AND i.ack_context IS NOT NULL AND p.reason IS DISTINCT FROM 'dead'
        AND i.enqueued_at <= shard_now() - make_interval(secs => $2::float8)
        AND ($3::timestamptz IS NULL OR i.enqueued_at >= $3) AS counts
FROM (SELECT * FROM item WHERE id > $1::uuid ORDER BY id LIMIT $4) AS i
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = i.namespace_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT reason FROM parked WHERE parked.id = i.id OFFSET 0) AS p ON true
ORDER BY i.id;
