-- Deliveries of DAGs' items that failed. Nothing here is on the way of one that succeeds.

-- name: log_attempts(item_ids, namespace_ids, attempts, started_ats, outcomes, errors, workers)
INSERT INTO attempt (item_id, namespace_id, attempt, started_at, ended_at, outcome, error, worker)
SELECT w.item_id, w.namespace_id, w.attempt, w.started_at, shard_now(), w.outcome, w.error, w.worker
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::timestamptz[], $5::text[], $6::text[], $7::text[])
    AS w(item_id, namespace_id, attempt, started_at, outcome, error, worker);

-- name: attempts_of(item_id, namespace, rows_max)
SELECT a.attempt, a.started_at, a.ended_at, a.outcome, a.error, a.worker
FROM (SELECT * FROM attempt WHERE item_id = $1 OFFSET 0) AS a
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = a.namespace_id OFFSET 0) AS n
WHERE n.name = $2
ORDER BY a.ended_at LIMIT $3;

-- name: attempts_of_many(item_ids, namespace, rows_max, error_chars)
-- The last of each; of an error its end, where the exception stands.
SELECT w.item_id::text, a.attempt, a.started_at, a.ended_at, a.outcome, right(a.error, $4) AS error, a.worker
FROM unnest($1::uuid[]) AS w(item_id)
CROSS JOIN LATERAL (
    SELECT * FROM (SELECT * FROM attempt WHERE attempt.item_id = w.item_id OFFSET 0) AS logged
    ORDER BY ended_at DESC LIMIT $3) AS a
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = a.namespace_id OFFSET 0) AS n
WHERE n.name = $2
ORDER BY w.item_id, a.ended_at;

-- name: drop_attempts(age_s, limit)
DELETE FROM attempt WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM attempt WHERE ended_at <= (SELECT shard_now()) - make_interval(secs => $1::float8)
    ORDER BY ended_at LIMIT $2::int FOR UPDATE SKIP LOCKED))
RETURNING item_id;
