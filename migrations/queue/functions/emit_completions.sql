-- The one emitter: every end of an item that asked for it becomes a completion item on the same shard. Calls that wait
-- are offers: each takes up to `items_max` of a topic for `wanted_s` (0: the item's own time), of no more than
-- `offer_bytes_max` bytes together, one item at least. What nobody waits for goes to ready.
CREATE OR REPLACE FUNCTION emit_completions(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], outcomes text[], attempt_numbers int[],
    outputs text[], errors text[], contexts text[],
    offer_topic_ids int[] = '{}', offer_tokens uuid[] = '{}', offer_lease_ss float8[] = '{}',
    offer_maxima int[] = '{}', offer_workers text[] = '{}', offer_bytes_max bigint = 0)
RETURNS TABLE (
    o_topic_id int, o_deliver_at timestamptz, o_id uuid, o_token uuid, o_lease_until timestamptz, o_payload text)
LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    at timestamptz := shard_now();
    finished_at text := to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    time_hex text := lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0');
    -- Ids of the same form as headgate.ids makes: UUIDv7, the shard's number in the last 12 bits.
    head text := left(time_hex, 8) || '-' || right(time_hex, 4) || '-7';
    tail text := (SELECT lpad(to_hex(number), 3, '0') FROM shard);
BEGIN
    RETURN QUERY
    WITH ends AS MATERIALIZED (
        SELECT (head || substr(gen_random_uuid()::text, 16, 18) || tail)::uuid AS new_id, x.*
        FROM unnest(item_ids, topic_ids, ack_topic_ids, outcomes, attempt_numbers, outputs, errors, contexts)
            AS x(item_id, topic_id, ack_topic_id, outcome, attempt, output, error, context)),
    inserted AS (
        INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, lease_s,
            at_most_once, managed, remembered, payload)
        SELECT ends.new_id, a.namespace_id, ends.ack_topic_id, 0, 0, at, at, 60, false, false, false,
            '{"id":"' || ends.item_id || '","topic":' || to_json(t.name) || ',"outcome":"' || ends.outcome
            || '","attempt":' || ends.attempt
            || coalesce(',"output":' || ends.output, '')
            || coalesce(',"error":' || to_json(ends.error), '')
            || ',"finished_at":"' || finished_at || '"'
            || coalesce(',"ack_context":' || ends.context, '') || '}'
        FROM ends
        CROSS JOIN LATERAL (SELECT namespace_id FROM topic WHERE topic.topic_id = ends.ack_topic_id OFFSET 0) AS a
        CROSS JOIN LATERAL (SELECT name FROM topic WHERE topic.topic_id = ends.topic_id OFFSET 0) AS t
        RETURNING item.id, item.namespace_id, item.topic_id, item.lease_s, octet_length(item.payload) AS bytes,
            CASE WHEN item.topic_id = ANY (offer_topic_ids) THEN item.payload END AS payload),
    handed AS MATERIALIZED (
        SELECT x.id, x.namespace_id, x.topic_id, o.token, o.worker,
            at + make_interval(secs => coalesce(nullif(o.wanted_s, 0), x.lease_s)) AS lease_until
        FROM unnest(offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers)
            AS o(topic_id, token, wanted_s, items_max, worker)
        CROSS JOIN LATERAL (
            SELECT row_number() OVER best AS nth, sum(inserted.bytes + 500) OVER best AS bytes_so_far,
                inserted.id, inserted.namespace_id, inserted.topic_id, inserted.lease_s
            FROM inserted WHERE inserted.topic_id = o.topic_id
            WINDOW best AS (ORDER BY inserted.id ROWS UNBOUNDED PRECEDING) ORDER BY inserted.id LIMIT o.items_max) AS x
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
        INSERT INTO ready SELECT inserted.topic_id, 0, at, inserted.id FROM inserted, handed_by_id AS h
        WHERE h.ids[width_bucket(inserted.id, h.ids)] IS DISTINCT FROM inserted.id),
    counted AS (
        INSERT INTO stat_delta
        SELECT topics.topic_id, topics.items - x.handed, 0, x.handed, 0, 0, topics.bytes
        FROM (
            SELECT inserted.topic_id, count(*) AS items, sum(inserted.bytes) AS bytes
            FROM inserted GROUP BY inserted.topic_id) AS topics
        CROSS JOIN LATERAL (
            SELECT count(*) AS handed FROM handed WHERE handed.topic_id = topics.topic_id) AS x)
    SELECT inserted.topic_id, at, inserted.id, h.tokens[x.place], h.lease_untils[x.place],
        CASE WHEN x.place IS NOT NULL THEN inserted.payload END
    FROM inserted, handed_by_id AS h
    CROSS JOIN LATERAL (SELECT width_bucket(inserted.id, h.ids) AS place OFFSET 0) AS b
    CROSS JOIN LATERAL (SELECT CASE WHEN h.ids[b.place] = inserted.id THEN b.place END AS place OFFSET 0) AS x;
END $$;
