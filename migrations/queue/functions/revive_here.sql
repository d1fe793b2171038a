-- Disabled items become deliverable, as by the verb `revive` for one who may manage them, and are leased to
-- offers, as far as the items of each have no more than `offer_bytes_max` bytes, one item at least. `inputs` has one
-- element for each, NULL where an item's own stay. All of them or none: one that is not there, not disabled or locked by
-- somebody else is an error.
CREATE OR REPLACE FUNCTION revive_here(
    wanted uuid[], given_inputs text[], offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[],
    offer_workers text[], offer_bytes_max bigint)
RETURNS SETOF told LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM (
        SELECT FROM parked WHERE parked.id = ANY (wanted) AND reason = 'disabled' FOR UPDATE SKIP LOCKED) AS p
    HAVING count(*) = cardinality(wanted);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an item is not there to be revived' USING ERRCODE = 'no_data_found';
    END IF;
    RETURN QUERY
    WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
    opened AS (DELETE FROM parked WHERE parked.id = ANY (wanted)),
    found AS MATERIALIZED (
        SELECT i.place, g.inputs FROM unnest(wanted, given_inputs) AS g(id, inputs)
        CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = g.id OFFSET 0) AS i),
    revived AS (
        UPDATE item i SET
            inputs = coalesce(found.inputs, i.inputs),
            deliver_at = greatest(clock.at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
            expires_at = clock.at + make_interval(secs => i.ttl_s)
        FROM found, clock WHERE i.ctid = found.place
        RETURNING i.id, i.namespace_id, i.managed, i.topic_id, i.priority, i.deliver_at,
            i.deliver_at <= clock.at AND i.fairness_key IS NULL AS is_ready,
            CASE WHEN i.topic_id = ANY (offer_topic_ids) THEN i END AS whole,
            octet_length(i.payload) + coalesce(octet_length(i.metadata), 0) + coalesce(octet_length(i.inputs), 0)
                + coalesce(octet_length(i.headers), 0) + coalesce(octet_length(i.ack_context), 0) + 500 AS bytes),
    handed AS MATERIALIZED (
        SELECT x.id, x.namespace_id, x.topic_id, o.token, o.worker,
            least(clock.at + make_interval(secs => least(x.timeout_s, coalesce(nullif(o.wanted_s, 0), x.lease_s))),
                x.deadline_at) AS lease_until
        FROM clock, unnest(offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers)
            AS o(topic_id, token, wanted_s, items_max, worker)
        CROSS JOIN LATERAL (
            SELECT row_number() OVER best AS nth, sum(revived.bytes) OVER best AS bytes_so_far,
                revived.id, revived.namespace_id, revived.topic_id, (revived.whole).lease_s,
                (revived.whole).timeout_s,
                CASE WHEN (revived.whole).is_deadline THEN (revived.whole).expires_at END AS deadline_at
            FROM revived WHERE revived.topic_id = o.topic_id AND revived.is_ready
            WINDOW best AS (ORDER BY revived.priority, revived.deliver_at, revived.id ROWS UNBOUNDED PRECEDING)
            ORDER BY revived.priority, revived.deliver_at, revived.id LIMIT o.items_max) AS x
        WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))
            AND (x.nth = 1 OR x.bytes_so_far <= offer_bytes_max)),
    leased AS (
        INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker)
        SELECT handed.token, handed.lease_until, handed.namespace_id, handed.topic_id, array_agg(handed.id),
            handed.worker
        FROM handed
        GROUP BY handed.token, handed.lease_until, handed.namespace_id, handed.topic_id, handed.worker),
    handed_by_id AS MATERIALIZED (
        SELECT array_agg(handed.id ORDER BY handed.id) AS ids, array_agg(handed.token ORDER BY handed.id) AS tokens,
            array_agg(handed.lease_until ORDER BY handed.id) AS lease_untils
        FROM handed),
    to_ready AS (
        INSERT INTO ready SELECT revived.topic_id, revived.priority, revived.deliver_at, revived.id
        FROM revived, handed_by_id AS h
        WHERE revived.is_ready AND h.ids[width_bucket(revived.id, h.ids)] IS DISTINCT FROM revived.id),
    to_deferred AS (INSERT INTO deferred SELECT revived.deliver_at, revived.id FROM revived WHERE NOT revived.is_ready),
    counted AS (
        INSERT INTO stat_delta
        SELECT topics.topic_id, topics.ready - x.handed, topics.delayed, x.handed, -topics.items, 0
        FROM (
            SELECT revived.topic_id, count(*) AS items, count(*) FILTER (WHERE revived.is_ready) AS ready,
                count(*) FILTER (WHERE NOT revived.is_ready) AS delayed
            FROM revived GROUP BY revived.topic_id) AS topics
        CROSS JOIN LATERAL (
            SELECT count(*) AS handed FROM handed WHERE handed.topic_id = topics.topic_id) AS x)
    SELECT revived.topic_id, revived.priority, revived.deliver_at, revived.id, true, revived.is_ready,
        h.tokens[x.place], h.lease_untils[x.place], w.payload, w.metadata, w.inputs, w.headers, w.attempts + 1,
        w.enqueued_at, w.at_most_once, CASE WHEN revived.managed THEN w.ack_context END
    FROM revived, handed_by_id AS h
    CROSS JOIN LATERAL (SELECT width_bucket(revived.id, h.ids) AS place OFFSET 0) AS b
    CROSS JOIN LATERAL (SELECT CASE WHEN h.ids[b.place] = revived.id THEN b.place END AS place OFFSET 0) AS x
    CROSS JOIN LATERAL (SELECT (CASE WHEN x.place IS NOT NULL THEN revived.whole END).*) AS w;
END $$;
