-- Leases what a claim has taken out of `ready`, as it would, as far as answers have room for it. What makes one too long
-- stays ready: in order of service, what is past the `bytes_maxima` of its call, and, of all calls, what is past
-- `bytes_max`; the smaller answers come first, so that who asks for less than an equal part gets it. An item in `firsts`
-- is leased at any size. The rows of the others are written back before anybody sees that they were gone. `tokens`,
-- `lease_ss` and `bytes_maxima` have one element for all, or one for each of `asked`, which is sorted. An item past its
-- TTL takes nothing: it is shown to nobody. `o_once` is for processes of an older version.
CREATE OR REPLACE FUNCTION claim_within(
    taken uuid[], asked uuid[], tokens uuid[], lease_ss float8[], workers jsonb, known_at timestamptz,
    known_at_json text, bytes_maxima bigint[], firsts uuid[], bytes_max bigint)
RETURNS TABLE (
    o_topic_id int, o_token text, o_lease_until timestamptz, o_items int, o_again int, o_once text[], o_pieces text)
LANGUAGE sql VOLATILE STRICT AS $$
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
told AS MATERIALIZED (
    SELECT i.*, CASE WHEN i.is_over THEN clock.at
        ELSE least(clock.at + make_interval(secs => least(timeout_s, coalesce(
            nullif(lease_ss[least(nth, cardinality(lease_ss))], 0), lease_s))),
            CASE WHEN is_deadline THEN expires_at END) END AS lease_until
    FROM clock, (
        SELECT item.id, namespace_id, topic_id, priority, deliver_at, lease_s, timeout_s, is_deadline,
            expires_at, attempts > 0 AS is_again, at_most_once,
            item.id <> ALL (firsts) AS is_later, n.nth, expires_at IS NOT NULL AND expires_at <= clock.at AS is_over,
            tokens[least(n.nth, cardinality(tokens))] AS token,
            bytes_maxima[least(n.nth, cardinality(bytes_maxima))] AS call_bytes_max, item_bytes(item) AS bytes
        FROM clock, item CROSS JOIN LATERAL (SELECT width_bucket(item.id, asked) AS nth) AS n
        WHERE item.id = ANY (taken) OFFSET 0) AS i),
of_calls AS (
    SELECT *, sum(bytes) OVER (
        PARTITION BY token ORDER BY is_later, priority, deliver_at, id ROWS UNBOUNDED PRECEDING) AS bytes_of_call
    FROM told WHERE NOT is_over),
of_all AS (
    SELECT *, sum(bytes) OVER (ORDER BY bytes_of_call, token ROWS UNBOUNDED PRECEDING) AS bytes_of_all
    FROM of_calls),
left_over AS MATERIALIZED (
    SELECT * FROM of_all WHERE is_later AND (bytes_of_call > call_bytes_max OR bytes_of_all > bytes_max)),
written_back AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM left_over),
groups AS MATERIALIZED (
    SELECT token, lease_until, namespace_id, topic_id, is_over, array_agg(told.id) AS ids, count(*)::int AS items,
        count(*) FILTER (WHERE is_again)::int AS again, array_agg(told.id::text) FILTER (WHERE at_most_once) AS once,
        string_agg(x.piece, E'\x1e' ORDER BY priority, deliver_at, told.id) AS pieces
    FROM told CROSS JOIN LATERAL (
        SELECT item_piece(item, known_at, known_at_json) AS piece FROM item WHERE item.id = told.id OFFSET 0) AS x
    WHERE told.id <> ALL (ARRAY(SELECT id FROM left_over))
    GROUP BY token, lease_until, namespace_id, topic_id, is_over),
leased AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker, claimed_at)
    SELECT groups.token, lease_until, namespace_id, topic_id, ids, workers ->> groups.token::text,
        CASE WHEN is_over THEN 'infinity' ELSE clock.at END
    FROM groups, clock),
counted AS (INSERT INTO stat_delta SELECT topic_id, -sum(items), 0, sum(items), 0, 0 FROM groups GROUP BY topic_id)
SELECT topic_id, token::text, lease_until, items, again, once, pieces FROM groups WHERE NOT is_over
UNION ALL SELECT NULL::int, token::text, NULL::timestamptz, 0, 0, NULL::text[], '' FROM left_over
$$;
