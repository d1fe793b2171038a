-- Where items stand, many at once; no locks.

-- name: standing(ids)
SELECT i.id::text, n.name AS namespace, t.name AS topic, i.state, i.attempts, i.max_attempts, i.error,
    i.deliver_at, i.parked_at
FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT item.id, item.namespace_id, item.topic_id, item.attempts, item.max_attempts, item.error, item.deliver_at,
        p.parked_at,
        CASE WHEN r.id IS NOT NULL THEN 'ready' WHEN d.id IS NOT NULL THEN 'delayed'
            ELSE coalesce(p.reason, 'leased') END AS state
    FROM item
    LEFT JOIN LATERAL (
        SELECT id FROM ready WHERE ready.topic_id = item.topic_id AND ready.priority = item.priority
            AND ready.deliver_at = item.deliver_at AND ready.id = item.id OFFSET 0) AS r ON true
    LEFT JOIN LATERAL (
        SELECT id FROM deferred WHERE deferred.due_at = item.deliver_at AND deferred.id = item.id OFFSET 0) AS d
        ON true
    LEFT JOIN LATERAL (SELECT reason, parked_at FROM parked WHERE parked.id = item.id OFFSET 0) AS p ON true
    WHERE item.id = w.id OFFSET 0) AS i
CROSS JOIN LATERAL (SELECT name FROM topic WHERE topic.topic_id = i.topic_id OFFSET 0) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = i.namespace_id OFFSET 0) AS n;

-- name: leases_of(ids)
-- The leases that hold these: one pass over what is leased on the shard, so asked only for a whole batch.
SELECT m.id::text, lease.expires_at, lease.claimed_at, lease.worker, lease.progress, lease.progress_at
FROM lease, unnest(lease.ids) AS m(id)
WHERE lease.expires_at > (SELECT shard_now()) AND lease.ids && $1::uuid[] AND m.id = ANY ($1::uuid[]);
