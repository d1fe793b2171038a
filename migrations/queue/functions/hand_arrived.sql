-- Leases items that the statement has just taken in, and that are ready, to the offers of calls that wait for their
-- topics, as `revive` does: the first of each topic, as far as they have no more than `offer_bytes_max` bytes
-- together, one item at least. Those that are leased.
CREATE OR REPLACE FUNCTION hand_arrived(
    arrived uuid[], offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[],
    offer_workers text[], offer_bytes_max bigint)
RETURNS SETOF told LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RETURN QUERY
    WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
    handed AS MATERIALIZED (
        SELECT x.*, o.token, o.worker,
            least(clock.at + make_interval(secs => least(x.timeout_s, coalesce(nullif(o.wanted_s, 0), x.lease_s))),
                CASE WHEN x.is_deadline THEN x.expires_at END) AS lease_until
        FROM clock, unnest(offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers)
            AS o(topic_id, token, wanted_s, items_max, worker)
        CROSS JOIN LATERAL (
            SELECT item.*, row_number() OVER best AS nth, sum(item_bytes(item)) OVER best AS bytes_so_far
            FROM item WHERE item.id = ANY (arrived) AND item.topic_id = o.topic_id
            WINDOW best AS (ORDER BY item.priority, item.deliver_at, item.id ROWS UNBOUNDED PRECEDING)
            ORDER BY item.priority, item.deliver_at, item.id LIMIT o.items_max) AS x
        WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))
            AND (x.nth = 1 OR x.bytes_so_far <= offer_bytes_max)),
    leased AS (
        INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker)
        SELECT handed.token, handed.lease_until, handed.namespace_id, handed.topic_id, array_agg(handed.id),
            handed.worker
        FROM handed
        GROUP BY handed.token, handed.lease_until, handed.namespace_id, handed.topic_id, handed.worker)
    SELECT handed.topic_id, handed.priority, handed.deliver_at, handed.id, false, true, handed.token,
        handed.lease_until, handed.payload, handed.metadata, handed.inputs, handed.headers, handed.attempts + 1,
        handed.enqueued_at, handed.at_most_once, CASE WHEN handed.managed THEN handed.ack_context END
    FROM handed;
END $$;
