-- Disabled items become deliverable, as by the verb `revive` for one who may manage them, and are leased to
-- offers, as far as the items of each have no more than `offer_bytes_max` bytes, one item at least. All of them or none: one that is not there, not disabled or locked by somebody else is an error.
CREATE OR REPLACE FUNCTION revive_here(
    wanted uuid[], offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[],
    offer_bytes_max bigint)
RETURNS SETOF told LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM (
        SELECT FROM parked WHERE parked.id = ANY (wanted) AND reason = 'disabled' FOR UPDATE SKIP LOCKED) AS p
    HAVING count(*) = cardinality(wanted);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an item is not there to be revived' USING ERRCODE = 'no_data_found';
    END IF;
    RETURN QUERY
    WITH n AS MATERIALIZED (SELECT shard_now() AS at),
    p AS (DELETE FROM parked WHERE parked.id = ANY (wanted) RETURNING parked.id),
    g AS MATERIALIZED (
        SELECT i.place FROM p
        CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = p.id OFFSET 0) AS i),
    u AS (
        UPDATE item i SET
            deliver_at = greatest(n.at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
            expires_at = n.at + make_interval(secs => i.ttl_s)
        FROM g, n WHERE i.ctid = g.place
        RETURNING i.id, i.namespace_id, i.managed, i.topic_id, i.priority, i.deliver_at,
            i.deliver_at <= n.at AND i.fairness_key IS NULL AS is_ready,
            CASE WHEN i.topic_id = ANY (offer_topic_ids) THEN i END AS whole,
            octet_length(i.payload) + coalesce(octet_length(i.metadata), 0) + coalesce(octet_length(i.inputs), 0)
                + coalesce(octet_length(i.headers), 0) + coalesce(octet_length(i.ack_context), 0) + 500 AS bytes),
    h AS MATERIALIZED (
        SELECT x.id, x.namespace_id, x.topic_id, o.token,
            n.at + make_interval(secs => coalesce(nullif(o.wanted_s, 0), x.lease_s)) AS lease_until
        FROM n, unnest(offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima)
            AS o(topic_id, token, wanted_s, items_max)
        CROSS JOIN LATERAL (
            SELECT row_number() OVER best AS nth, sum(u.bytes) OVER best AS bytes_so_far,
                u.id, u.namespace_id, u.topic_id, (u.whole).lease_s
            FROM u WHERE u.topic_id = o.topic_id AND u.is_ready
            WINDOW best AS (ORDER BY u.priority, u.deliver_at, u.id ROWS UNBOUNDED PRECEDING)
            ORDER BY u.priority, u.deliver_at, u.id LIMIT o.items_max) AS x
        WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))
            AND (x.nth = 1 OR x.bytes_so_far <= offer_bytes_max)),
    l AS (
        INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)
        SELECT h.token, h.lease_until, h.namespace_id, h.topic_id, array_agg(h.id) FROM h
        GROUP BY h.token, h.lease_until, h.namespace_id, h.topic_id),
    r AS (
        INSERT INTO ready SELECT u.topic_id, u.priority, u.deliver_at, u.id FROM u
        WHERE u.is_ready AND NOT EXISTS (SELECT FROM h WHERE h.id = u.id)),
    d AS (INSERT INTO deferred SELECT u.deliver_at, u.id FROM u WHERE NOT u.is_ready),
    s AS (
        INSERT INTO stat_delta
        SELECT u.topic_id, count(*) FILTER (WHERE u.is_ready) - x.handed, count(*) FILTER (WHERE NOT u.is_ready),
            x.handed, -count(*), 0
        FROM u CROSS JOIN LATERAL (SELECT count(*) AS handed FROM h WHERE h.topic_id = u.topic_id) AS x
        GROUP BY u.topic_id, x.handed)
    SELECT u.topic_id, u.priority, u.deliver_at, u.id, true, u.is_ready, h.token, h.lease_until, w.payload,
        w.metadata, w.inputs, w.headers, w.attempts + 1, w.enqueued_at, w.at_most_once,
        CASE WHEN u.managed THEN w.ack_context END
    FROM u LEFT JOIN h ON h.id = u.id
    CROSS JOIN LATERAL (SELECT (CASE WHEN h.id IS NOT NULL THEN u.whole END).*) AS w;
END $$;
