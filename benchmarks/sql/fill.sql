-- Backlogs, straight into a shard's tables: items of an hour ago, in order, with ids of the usual form, as calls
-- of 100 items each would have left them: those of one call lie in one shard and have one time.

-- name: fill(topic_ids, first, count, each)
-- `each` items go to one topic, then as many to the next; counts are kept as an enqueue keeps them. The shards take
-- calls in turns.
WITH b AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000 AS ms,
        clock_timestamp() - interval '1 hour' AS at, (SELECT number FROM shard) AS number,
        lpad(to_hex((SELECT number FROM shard)), 3, '0') AS tail),
f AS MATERIALIZED (
    SELECT (lpad(to_hex(b.ms + i / 1000), 12, '0') || '7' || lpad(to_hex(i % 1000), 3, '0') || '8'
            || substr(md5(i::text), 1, 12) || b.tail)::uuid AS id,
        ($1::int[])[1 + (i / $4::int) % cardinality($1::int[])] AS topic_id,
        b.at + (i / 100 * 16 + b.number) * interval '1 microsecond' AS at
    FROM generate_series($2::bigint, $2::bigint + $3::int - 1) AS i, b),
i AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT f.id, t.namespace_id, f.topic_id, 0, 60, '"' || repeat('x', 126) || '"', f.at, f.at, 0, false, false,
        false
    FROM f JOIN topic t ON t.topic_id = f.topic_id),
s AS (INSERT INTO stat_delta SELECT topic_id, count(*), 0, 0, 0, 0 FROM f GROUP BY topic_id)
INSERT INTO ready SELECT topic_id, 0, at, id FROM f;

-- name: tidy()
VACUUM (ANALYZE) item, ready, stat_delta;

-- name: checkpoint()
CHECKPOINT;

-- name: filled()
-- Where the next fill of a shard goes on, for ids of its own.
SELECT count(*) FROM item;
