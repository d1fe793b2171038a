-- What is kept only for a while.

-- name: ended_age_s()
SELECT extract(epoch FROM shard_now() - rotated_at)::float8 AS age_s FROM ended_rotation;

-- name: start_rotation(age_s)
-- One host rotates; another finds the row already young.
UPDATE ended_rotation SET rotated_at = shard_now()
WHERE rotated_at <= shard_now() - make_interval(secs => $1::float8) RETURNING rotated_at;

-- name: keep_cancelled(age_s)
-- What was cancelled under a lease whose group is there since longer than that: its holder is still to be told, until a
-- sweep has taken the group that would say it was acked. Other ends of leased items are remembered by it, or end the lease.
INSERT INTO ended (id, namespace_id, outcome)
SELECT cancelled.id, cancelled.namespace_id, cancelled.outcome
FROM (
    SELECT unnest(ids) AS id FROM lease
    WHERE expires_at > '-infinity'
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

-- name: drop_acked(age_s, limit)
-- By when their items were made, which is before they were acked: nothing asks for older ids.
DELETE FROM acked WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM acked
    WHERE made < (SELECT left(oldest, 8) || '-' || substr(oldest, 9, 3) FROM lpad(
        to_hex((extract(epoch FROM shard_now()) * 1000)::bigint - ($1::float8 * 1000)::bigint), 12, '0') AS oldest)
    ORDER BY made LIMIT $2::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: far_keys(after_lives_at, after_namespace_id, after_key, limit)
-- Keys that came here with their slots while their items stayed where they were.
SELECT lives_at, namespace_id, key, id::text, until IS NOT NULL AS is_free FROM dedup
WHERE lives_at IS NOT NULL AND (lives_at, namespace_id, key) > ($1::int, $2::int, $3::text)
ORDER BY dedup.lives_at, dedup.namespace_id, dedup.key LIMIT $4::int;

-- name: note_far_keys(namespace_ids, keys, ids, states)
-- What became of their items. The keys of those that are gone are kept as long as any other's. Those of dead ones are
-- free for ever: that is, for unique items; to all others they are held until the item is gone. A dead item may live again.
UPDATE dedup SET lives_at = CASE WHEN f.state <> 'gone' THEN dedup.lives_at END, until = CASE f.state
    WHEN 'gone' THEN shard_now() + interval '24 hours' WHEN 'dead' THEN 'infinity'::timestamptz END
FROM (SELECT q.place, w.id, w.state
    FROM unnest($1::int[], $2::text[], $3::uuid[], $4::text[]) AS w(namespace_id, key, id, state)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM dedup
        WHERE dedup.namespace_id = w.namespace_id AND dedup.key = w.key OFFSET 0) AS q
    OFFSET 0) AS f
WHERE dedup.ctid = f.place AND dedup.id = f.id;

-- name: old_dead(age_s, limit)
SELECT id::text FROM parked
WHERE reason = 'dead' AND parked_at <= (SELECT shard_now() - make_interval(secs => $1::float8))
ORDER BY parked.parked_at LIMIT $2::int;

-- name: server_health()
-- Of this schema's tables alone: the views of statistics would first put together those of the whole database.
SELECT t.dead_tuples,
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8
        AS oldest_transaction_age_s
FROM (
    SELECT coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint AS dead_tuples
    FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = current_schema() AND c.relkind = 'r') AS t;

-- name: shard_bytes()
-- Of all tables with their indexes. It asks the file system for each, which takes some milliseconds.
SELECT sum(pg_total_relation_size(c.oid))::bigint AS bytes
FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
WHERE n.nspname = current_schema() AND c.relkind = 'r';

-- name: retire_topics(after_topic_id, age_s, limit)
-- The first step of deleting topics: of the next `limit` those are marked that have held nothing for so long, and from then
-- on nothing is taken in under their numbers. `last_topic_id`: where to go on, NULL at the end.
WITH looked AS MATERIALIZED (
    SELECT topic_id, ready + delayed + leased + disabled + dead = 0
        AND folded_at <= (SELECT shard_now()) - make_interval(secs => $2::float8) AS is_idle
    FROM topic_stat WHERE topic_id > $1::int ORDER BY topic_stat.topic_id LIMIT $3::int),
idle AS MATERIALIZED (SELECT array_agg(topic_id ORDER BY topic_id) AS topic_ids FROM looked WHERE is_idle),
marked AS (
    UPDATE topic SET retiring = gen_random_uuid() WHERE ctid = ANY (ARRAY(
        SELECT t.place FROM idle CROSS JOIN LATERAL free_topics(idle.topic_ids) AS free(topic_id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM topic WHERE topic.topic_id = free.topic_id AND retiring IS NULL
            OFFSET 0 FOR UPDATE SKIP LOCKED) AS t))
    RETURNING topic_id)
SELECT (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM marked) AS marked,
    (SELECT topic_id FROM looked ORDER BY looked.topic_id OFFSET $3::int - 1 LIMIT 1) AS last_topic_id;

-- name: retiring_topics(limit)
SELECT topic_id, retiring::text AS mark FROM topic WHERE retiring IS NOT NULL ORDER BY topic.topic_id LIMIT $1::int;

-- name: running_transactions()
-- Those of this database, under names that no other transaction of the server has had or gets.
SELECT virtualtransaction AS transaction FROM pg_locks
WHERE locktype = 'virtualxid' AND pid <> pg_backend_pid()
    AND pid IN (SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type IS DISTINCT FROM 'autovacuum worker');

-- name: delete_topics(topic_ids, marks)
-- The second step, once no transaction is left that may not have seen the marks: topics (sorted) that still have them, and
-- are still free, are deleted. One that is not free any more, by a transaction of before, is taken back.
WITH free AS MATERIALIZED (SELECT free_topics($1::int[]) AS topic_id),
asked AS MATERIALIZED (
    SELECT u.topic_id, u.mark, u.topic_id = ANY (ARRAY(SELECT topic_id FROM free)) AS is_free
    FROM unnest($1::int[], $2::uuid[]) AS u(topic_id, mark)),
gone AS (
    DELETE FROM topic WHERE ctid = ANY (ARRAY(
        SELECT t.place FROM asked
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM topic WHERE topic.topic_id = asked.topic_id AND retiring = asked.mark
            OFFSET 0 FOR UPDATE SKIP LOCKED) AS t
        WHERE asked.is_free))
    RETURNING topic_id),
totals AS (DELETE FROM topic_stat WHERE topic_id = ANY (ARRAY(SELECT topic_id FROM gone))),
kept AS (
    UPDATE topic SET retiring = NULL WHERE ctid = ANY (ARRAY(
        SELECT t.place FROM asked
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM topic WHERE topic.topic_id = asked.topic_id AND retiring = asked.mark
            OFFSET 0 FOR UPDATE SKIP LOCKED) AS t
        WHERE NOT asked.is_free)))
SELECT topic_id FROM gone;
