-- What jobs log. A row holds the lines of one call about one item.

-- name: lock_log_use(namespace_id)
SELECT bytes, last_seq FROM job_log_use WHERE namespace_id = $1::int FOR UPDATE;

-- name: begin_log_use(namespace_id)
INSERT INTO job_log_use (namespace_id, bytes, last_seq) VALUES ($1::int, 0, 0) ON CONFLICT (namespace_id) DO NOTHING;

-- name: log_holders(namespace_id, ids, tokens)
-- Of (item, token) those that a lease of the namespace names, by their places from 1, and the end of the item's log. One
-- that was acked is named until its lease would have run out; so is one that was cancelled, which is not to be held. A
-- lease from before the item was enqueued is of another one under the same id.
SELECT asked.place, held.worker, last.token::text AS last_token, last.number AS last_number,
    coalesce(last.item_bytes, 0) AS item_bytes
FROM unnest($2::uuid[], $3::uuid[]) WITH ORDINALITY AS asked(id, token, place)
CROSS JOIN LATERAL (
    SELECT lease.worker, lease.claimed_at, lease.expires_at FROM lease
    WHERE lease.token = asked.token AND lease.namespace_id = $1::int AND asked.id = ANY (lease.ids) LIMIT 1) AS held
LEFT JOIN LATERAL (
    SELECT NOT item.remembered OR item.managed OR item.enqueued_at <= held.claimed_at AS is_it FROM item
    WHERE item.id = asked.id OFFSET 0) AS living ON true
LEFT JOIN LATERAL (
    SELECT true AS is_known FROM ended WHERE ended.id = asked.id AND ended.outcome = 'cancelled' OFFSET 0)
    AS cancelled ON living.is_it IS NULL
LEFT JOIN LATERAL (
    SELECT true AS is_known FROM ended_old WHERE ended_old.id = asked.id AND ended_old.outcome = 'cancelled' OFFSET 0)
    AS cancelled_before ON living.is_it IS NULL
LEFT JOIN LATERAL (
    SELECT job_log.token, job_log.number, job_log.item_bytes FROM job_log
    WHERE job_log.item_id = asked.id AND job_log.namespace_id = $1::int
    ORDER BY job_log.seq DESC LIMIT 1) AS last ON true
WHERE coalesce(
    living.is_it,
    held.expires_at > shard_now() AND cancelled.is_known IS NULL AND cancelled_before.is_known IS NULL);

-- name: write_logs(namespace_id, ids, tokens, numbers, attempts, workers, bytes, item_bytes, lines)
-- Under the lock of the namespace's row.
WITH written AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::int[], $5::int[], $6::text[], $7::int[], $8::bigint[], $9::text[])
        WITH ORDINALITY AS w(item_id, token, number, attempt, worker, bytes, item_bytes, lines, place)),
used AS (
    UPDATE job_log_use SET bytes = job_log_use.bytes + total.bytes, last_seq = job_log_use.last_seq + total.calls
    FROM (SELECT sum(bytes) AS bytes, count(*) AS calls FROM written) AS total
    WHERE job_log_use.namespace_id = $1::int
    RETURNING job_log_use.last_seq - total.calls AS last_seq)
INSERT INTO job_log (item_id, namespace_id, seq, token, number, attempt, worker, received_at, bytes, item_bytes, lines)
SELECT w.item_id, $1::int, used.last_seq + w.place, w.token, w.number, w.attempt, w.worker, shard_now(), w.bytes,
    w.item_bytes, w.lines
FROM written AS w, used;

-- name: job_log(item_id, namespace, from_seq, limit)
SELECT entry.seq, entry.received_at, entry.attempt, entry.worker, entry.lines
FROM (SELECT namespace_id FROM namespace WHERE name = $2 OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT seq, received_at, attempt, worker, lines FROM job_log
    WHERE job_log.item_id = $1::uuid AND job_log.namespace_id = n.namespace_id AND job_log.seq >= $3::bigint
    ORDER BY job_log.seq LIMIT $4::int) AS entry
ORDER BY entry.seq;

-- name: drop_logs(age_s, limit)
WITH gone AS (
    DELETE FROM job_log WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM job_log WHERE received_at <= (SELECT shard_now()) - make_interval(secs => $1::float8)
        ORDER BY received_at LIMIT $2::int FOR UPDATE SKIP LOCKED))
    RETURNING namespace_id, bytes),
freed AS (
    UPDATE job_log_use SET bytes = job_log_use.bytes - (
        SELECT sum(gone.bytes) FROM gone WHERE gone.namespace_id = job_log_use.namespace_id)
    WHERE namespace_id = ANY (ARRAY(SELECT DISTINCT namespace_id FROM gone)))
SELECT 1 FROM gone;
