-- New items, disabled, of whom `ack_topic` hears how they end; as by the verb `enqueue`. Each is JSON: `namespace`, `id`,
-- `topic`, `payload`, `priority`, `lease_s`, `max_attempts`, `ack_context`. All of them or none: a topic that is not
-- there, or is to be deleted, is an error, and the verb is what makes it.
CREATE OR REPLACE FUNCTION make_here(wanted text[], ack_topic int) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    made uuid[];
BEGIN
    WITH inserted AS (
        INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, max_attempts,
            at_most_once, managed, remembered, ack_topic_id, ack_context)
        SELECT (x.body ->> 'id')::uuid, t.namespace_id, t.topic_id, (x.body ->> 'priority')::int,
            (x.body ->> 'lease_s')::float8, x.body ->> 'payload', shard_now(), (x.body ->> 'max_attempts')::int,
            false, true, true, ack_topic, x.body ->> 'ack_context'
        FROM unnest(wanted) AS w(body)
        CROSS JOIN LATERAL (SELECT w.body::json AS body OFFSET 0) AS x
        CROSS JOIN LATERAL (
            SELECT topic.topic_id, topic.namespace_id FROM topic
            WHERE topic.namespace_id = (
                    SELECT namespace.namespace_id FROM namespace WHERE namespace.name = x.body ->> 'namespace')
                AND topic.name = x.body ->> 'topic' AND topic.retiring IS NULL OFFSET 0) AS t
        RETURNING item.id, item.namespace_id, item.topic_id, item.enqueued_at, octet_length(item.payload) AS bytes),
    closed AS (
        INSERT INTO parked (id, namespace_id, topic_id, reason, managed, parked_at)
        SELECT inserted.id, inserted.namespace_id, inserted.topic_id, 'disabled', true, inserted.enqueued_at
        FROM inserted),
    counted AS (
        INSERT INTO stat_delta
        SELECT inserted.topic_id, 0, 0, 0, count(*), 0, sum(inserted.bytes) FROM inserted GROUP BY inserted.topic_id)
    SELECT array_agg(inserted.id) INTO made FROM inserted;
    IF cardinality(made) IS DISTINCT FROM cardinality(wanted) THEN
        RAISE EXCEPTION 'the topic of an item is not there' USING ERRCODE = 'no_data_found';
    END IF;
    RETURN made;
END $$;
