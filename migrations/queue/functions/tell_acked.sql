-- The ends of acked items that asked to be told of: folded, as far as `folds` says and it can be, told by
-- completion items otherwise, whose contexts say since when and by whom each was held, where `started_ats` has that.
-- What that made ready, leased to offers as far as those go; and DAGs that have ended.
CREATE OR REPLACE FUNCTION tell_acked(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], attempt_numbers int[], outputs text[], contexts text[],
    started_ats timestamptz[], workers text[], folds int, offer_topic_ids int[], offer_tokens uuid[],
    offer_lease_ss float8[], offer_maxima int[], offer_workers text[], offer_bytes_max bigint)
RETURNS SETOF told LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    taken uuid[];
    news told[];
    wide uuid[];
    rest record;
    outcomes text[];
    errors text[];
BEGIN
    IF folds > 0 THEN
        SELECT f.taken, f.news, f.wide INTO taken, news, wide
        FROM fold_completions(item_ids, ack_topic_ids, attempt_numbers, outputs, contexts, started_ats, workers, '{}',
            folds, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers, offer_bytes_max) AS f;
        IF folds & 8 > 0 AND cardinality(wide) > 0 THEN
            RAISE EXCEPTION 'acks of these items are to be made apart' USING
                ERRCODE = 'HG001', DETAIL = array_to_string(wide, ' ');
        END IF;
        IF cardinality(taken) > 0 THEN
            RETURN QUERY SELECT * FROM unnest(news);
            IF cardinality(taken) = cardinality(item_ids) THEN
                RETURN;
            END IF;
            SELECT array_agg(u.id) AS ids, array_agg(u.topic_id) AS topics,
                array_agg(u.ack_topic_id) AS ack_topics, array_agg(u.attempts) AS attempts,
                array_agg(u.output) AS outputs, array_agg(u.context) AS contexts,
                array_agg(u.started_at) AS started_ats, array_agg(u.worker) AS workers
            INTO rest
            FROM unnest(item_ids, topic_ids, ack_topic_ids, attempt_numbers, outputs, contexts, started_ats, workers)
                AS u(id, topic_id, ack_topic_id, attempts, output, context, started_at, worker)
            WHERE u.id <> ALL (taken);
            item_ids := rest.ids;
            topic_ids := rest.topics;
            ack_topic_ids := rest.ack_topics;
            attempt_numbers := rest.attempts;
            outputs := rest.outputs;
            contexts := rest.contexts;
            started_ats := rest.started_ats;
            workers := rest.workers;
        END IF;
    END IF;
    contexts := ARRAY(
        SELECT CASE WHEN u.started_at IS NOT NULL AND u.context LIKE '{"%' THEN
            left(u.context, -1) || ',"started_at":' || to_json(u.started_at)
                || coalesce(',"worker":' || to_json(u.worker), '') || '}'
            ELSE u.context END
        FROM unnest(contexts, started_ats, workers) WITH ORDINALITY AS u(context, started_at, worker, nth)
        ORDER BY u.nth);
    outcomes := array_fill('acked'::text, ARRAY[cardinality(item_ids)]);
    errors := array_fill(NULL::text, ARRAY[cardinality(item_ids)]);
    RETURN QUERY
    SELECT e.o_topic_id, 0, e.o_deliver_at, e.o_id, false, true, e.o_token, e.o_lease_until, e.o_payload,
        NULL::text, NULL::text, NULL::text, 1, e.o_deliver_at, false, NULL::text
    FROM emit_completions(
        item_ids, topic_ids, ack_topic_ids, outcomes, attempt_numbers, outputs, errors, contexts,
        offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers, offer_bytes_max) AS e;
END $$;
