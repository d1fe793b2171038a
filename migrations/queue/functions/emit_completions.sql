-- The one emitter: every end of an item that asked for it becomes a completion item on the same shard.
CREATE OR REPLACE FUNCTION emit_completions(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], outcomes text[], attempt_numbers int[],
    outputs text[], errors text[], contexts text[])
RETURNS TABLE (o_topic_id int, o_deliver_at timestamptz, o_id uuid) LANGUAGE plpgsql VOLATILE STRICT AS $$
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
        RETURNING item.topic_id, octet_length(item.payload) AS bytes),
    counted AS (
        INSERT INTO stat_delta
        SELECT inserted.topic_id, count(*), 0, 0, 0, 0, sum(inserted.bytes) FROM inserted GROUP BY inserted.topic_id)
    INSERT INTO ready SELECT ends.ack_topic_id, 0, at, ends.new_id FROM ends
    RETURNING ready.topic_id, ready.deliver_at, ready.id;
END $$;
