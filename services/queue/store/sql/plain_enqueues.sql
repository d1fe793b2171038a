-- Items that come in with nothing but the common fields, which most do: half of what `enqueue` sets up is for the
-- others, and is paid by every flush.

-- part: kinds_part
-- A row of the arrays is a kind of item: where its ids end among `ids`, and its payloads, joined by U+001E. A number that
-- does not stand for its names is an error that says so, and nothing is taken in; the topic is looked up by that number,
-- since no index serves IS NOT DISTINCT FROM.
kinds AS MATERIALIZED (
    SELECT u.*, n.at, ($8::uuid[])[coalesce(($6::int[])[u.nth - 1], 0) + 1:u.last] AS ids, coalesce((
            SELECT t.namespace_id FROM topic t
            WHERE t.topic_id = u.topic_id AND t.name IS NOT DISTINCT FROM u.topic AND t.retiring IS NULL
                AND u.namespace = (
                SELECT s.name FROM namespace s WHERE s.namespace_id = t.namespace_id)), refuse_void(u.topic_id)) AS namespace_id
    FROM (SELECT shard_now() AS at OFFSET 0) AS n,
        unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::float8[], $6::int[], $7::text[])
            WITH ORDINALITY AS u(namespace, topic, topic_id, priority, lease_s, last, payloads, nth)),

-- part: arrivals_part
to_ready AS (INSERT INTO ready SELECT topic_id, priority, at, unnest(ids) FROM kinds),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, cardinality(ids), 0, 0, 0, 0, octet_length(payloads) - cardinality(ids) + 1 FROM kinds)

-- name: enqueue_plain(namespaces, topics, topic_ids, priorities, lease_ss, lasts, payloads, ids)
-- One flush of enqueues whose ids were made here and that give nothing but the common fields: nothing to look up,
-- nothing to conflict with.
WITH {kinds_part}
inserted AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT unnest(ids), namespace_id, topic_id, priority, lease_s, unnest(string_to_array(payloads, E'\x1e')), at, at,
        0,
        false, false, false
    FROM kinds),
{arrivals_part}
SELECT at FROM kinds LIMIT 1;

-- name: enqueue_named(namespaces, topics, topic_ids, priorities, lease_ss, lasts, payloads, ids, first_id, last_id, window_ms, ahead_ms)
-- As `enqueue_plain`, of ids by callers, which are mostly new: that one is not is an error, and nothing is taken in.
-- Either it is of an item that is there (a key twice), or `refuse_known` says so once all are inserted, since an insert
-- that waited for the transaction that ended the same id must see that end. `enqueue` then says which they are.
WITH {kinds_part}
inserted AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, max_attempts,
        at_most_once, managed, remembered)
    SELECT unnest(ids), namespace_id, topic_id, priority, lease_s, unnest(string_to_array(payloads, E'\x1e')), at, at,
        0, false, false, true
    FROM kinds
    RETURNING 1),
{arrivals_part}
SELECT at, refuse_known($8::uuid[], $9::uuid, $10::uuid, $11::bigint, $12::bigint, (SELECT count(*) FROM inserted))
FROM kinds LIMIT 1;
