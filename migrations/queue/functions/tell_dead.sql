-- The ends of items that have died and asked to be told of: folded, as far as `folds` says and it can be, told by
-- completion items otherwise. What that made ready, and DAGs that have ended, as of `tell_acked`.
CREATE OR REPLACE FUNCTION tell_dead(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], attempt_numbers int[], errors text[], contexts text[],
    folds int)
RETURNS SETOF told LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    taken uuid[] := '{}';
    news told[];
BEGIN
    IF folds > 0 THEN
        SELECT f.taken, f.news INTO taken, news
        FROM fold_completions(item_ids, ack_topic_ids, attempt_numbers, '{}', contexts, '{}', '{}',
            ARRAY(SELECT coalesce(to_json(w.error)::text, 'null')
                FROM unnest(errors) WITH ORDINALITY AS w(error, nth) ORDER BY w.nth),
            folds, '{}', '{}', '{}', '{}', '{}', 0) AS f;
        RETURN QUERY SELECT * FROM unnest(news);
    END IF;
    RETURN QUERY
    SELECT e.o_topic_id, 0, e.o_deliver_at, e.o_id, false, true, NULL::uuid, NULL::timestamptz, NULL::text,
        NULL::text, NULL::text, NULL::text, 1, e.o_deliver_at, false, NULL::text
    FROM (
        SELECT array_agg(u.id) AS ids, array_agg(u.topic_id) AS topics, array_agg(u.ack_topic_id) AS ack_topics,
            array_agg('dead'::text) AS outcomes, array_agg(u.attempts) AS attempts,
            array_agg(NULL::text) AS outputs, array_agg(u.error) AS errors, array_agg(u.context) AS contexts
        FROM unnest(item_ids, topic_ids, ack_topic_ids, attempt_numbers, errors, contexts)
            AS u(id, topic_id, ack_topic_id, attempts, error, context)
        WHERE u.id <> ALL (taken)) AS c,
        emit_completions(c.ids, c.topics, c.ack_topics, c.outcomes, c.attempts, c.outputs, c.errors, c.contexts) AS e;
END $$;
