-- What is kept only for a while.

-- name: ended_age_s()
SELECT extract(epoch FROM shard_now() - rotated_at)::float8 AS age_s FROM ended_rotation;

-- name: start_rotation(age_s)
-- One host rotates; another finds the row already young.
UPDATE ended_rotation SET rotated_at = shard_now()
WHERE rotated_at <= shard_now() - make_interval(secs => $1::float8) RETURNING rotated_at;

-- name: keep_cancelled(age_s)
-- What was cancelled under a lease that has run on since longer than that: its holder is still to be told. Other ends
-- of leased items are either remembered by the group or end the lease.
INSERT INTO ended (id, namespace_id, outcome)
SELECT cancelled.id, cancelled.namespace_id, cancelled.outcome
FROM (
    SELECT unnest(ids) AS id FROM lease
    WHERE expires_at > (SELECT shard_now())
        AND claimed_at <= (SELECT shard_now() - make_interval(secs => $1::float8))) AS held
CROSS JOIN LATERAL (
    SELECT id, namespace_id, outcome FROM ended_old WHERE ended_old.id = held.id AND outcome = 'cancelled' OFFSET 0)
    AS cancelled
ON CONFLICT (id) DO NOTHING;

-- name: wait_briefly(lock_timeout)
-- For the rest of the transaction.
SELECT set_config('lock_timeout', $1, true);

-- name: lock_ended()
-- In the order in which every other statement comes to the three, so that none of them meets this in a deadlock.
LOCK TABLE unseen_cancel, ended, ended_old IN ACCESS EXCLUSIVE MODE;

-- name: empty_old()
TRUNCATE ended_old, unseen_cancel;

-- name: set_old_aside()
ALTER TABLE ended_old RENAME TO ended_spare;

-- name: age_current()
ALTER TABLE ended RENAME TO ended_old;

-- name: bring_spare()
ALTER TABLE ended_spare RENAME TO ended;

-- name: drop_keys(limit)
DELETE FROM dedup WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dedup WHERE until <= (SELECT shard_now()) ORDER BY until LIMIT $1::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: far_keys(after_lives_at, after_namespace_id, after_key, limit)
-- Keys that came here with their slots while their items stayed where they were.
SELECT lives_at, namespace_id, key, id::text FROM dedup
WHERE lives_at IS NOT NULL AND (lives_at, namespace_id, key) > ($1::int, $2::int, $3::text)
ORDER BY dedup.lives_at, dedup.namespace_id, dedup.key LIMIT $4::int;

-- name: end_far_keys(namespace_ids, keys, ids)
-- Their items are gone: the keys are kept as long as any other's.
UPDATE dedup SET lives_at = NULL, until = coalesce(until, shard_now() + interval '24 hours')
FROM (SELECT q.place FROM unnest($1::int[], $2::text[], $3::uuid[]) AS w(namespace_id, key, id)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, id FROM dedup
        WHERE dedup.namespace_id = w.namespace_id AND dedup.key = w.key OFFSET 0) AS q
    WHERE q.id = w.id OFFSET 0) AS f
WHERE dedup.ctid = f.place;

-- name: old_dead(age_s, limit)
SELECT id::text FROM parked
WHERE reason = 'dead' AND parked_at <= (SELECT shard_now() - make_interval(secs => $1::float8))
ORDER BY parked.parked_at LIMIT $2::int;

-- name: server_health()
-- Of this schema's tables alone: the views of statistics would first put together those of the whole database.
SELECT t.dead_tuples,
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8
        AS oldest_transaction_age_s,
    t.bytes
FROM (
    SELECT coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint AS dead_tuples,
        sum(pg_total_relation_size(c.oid))::bigint AS bytes
    FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = current_schema() AND c.relkind = 'r') AS t;
