-- What acked items leave behind, beside a count: that their ids have ended, when their keys are free again, and the ends
-- that somebody wants to hear of. How many of these there are; and of `tell_acked`, what that made ready, and which DAGs
-- have ended, as JSON arrays of its columns, of what was not leased the first six where `are_short` says that its caller knows those: what
-- ran before revision 0015 asks without it, and takes all columns. Ids are remembered in a row each of `ended`; where they are several, the
-- young ones many a row of `acked`, in which they are kept by when they were made (see `drop_acked`). `tokens` are those that the ack has locked, each of which may
-- be that of several leases, `outputs` as it was given them: of megabytes, maybe, each is taken from
-- where all of them are, and no part that holds several is made.
CREATE OR REPLACE FUNCTION leave_behind(
    acked acked_item[], tokens uuid[], outputs jsonb, folds int, offer_topic_ids int[], offer_tokens uuid[],
    offer_lease_ss float8[], offer_maxima int[], offer_workers text[], offer_bytes_max bigint,
    are_short boolean DEFAULT false)
RETURNS TABLE (o_ends int, o_news text) LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    ends record;
    packed_from uuid;
BEGIN
    WITH lease_groups AS MATERIALIZED (
        SELECT lease.token, lease.ids, lease.claimed_at, lease.worker FROM lease WHERE lease.token = ANY (tokens))
    SELECT count(*) FILTER (WHERE item.remembered) AS remembered, count(item.idempotency_key) AS keyed,
        array_agg(item.id) FILTER (WHERE item.is_told) AS ids, array_agg(item.topic_id) FILTER (WHERE item.is_told) AS topics,
        array_agg(item.ack_topic_id) FILTER (WHERE item.is_told) AS ack_topics,
        array_agg(item.attempts) FILTER (WHERE item.is_told) AS attempts,
        array_agg(outputs #>> ARRAY[holder.token::text, item.id::text]) FILTER (WHERE item.is_told) AS outputs,
        array_agg(item.ack_context) FILTER (WHERE item.is_told) AS contexts,
        array_agg(CASE WHEN item.managed THEN holder.claimed_at END) FILTER (WHERE item.is_told) AS started_ats,
        array_agg(CASE WHEN item.managed THEN holder.worker END) FILTER (WHERE item.is_told) AS workers
    INTO ends
    FROM (SELECT *, ack_topic_id IS NOT NULL AS is_told FROM unnest(acked)) AS item
    LEFT JOIN LATERAL (
        SELECT lease_groups.token, lease_groups.claimed_at, lease_groups.worker FROM lease_groups
        WHERE item.is_told AND item.id = ANY (lease_groups.ids)
        ORDER BY lease_groups.claimed_at DESC LIMIT 1) AS holder ON true;
    IF ends.remembered >= 8 THEN
        packed_from := (lpad(to_hex((extract(epoch FROM shard_now() - interval '5 minutes') * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid;
        INSERT INTO acked (made, namespace_id, ids)
        SELECT part.made, part.namespace_id, array_agg(part.id ORDER BY part.id)
        FROM (
            SELECT item.id, item.namespace_id, left(item.id::text, 12) AS made, (row_number() OVER (
                PARTITION BY item.namespace_id, left(item.id::text, 12) ORDER BY item.id) - 1) / 100 AS nth
            FROM unnest(acked) AS item WHERE item.remembered AND item.id >= packed_from) AS part
        GROUP BY part.namespace_id, part.made, part.nth;
    END IF;
    IF ends.remembered > 0 THEN
        INSERT INTO ended (id, namespace_id, outcome)
        SELECT item.id, item.namespace_id, 'acked' FROM unnest(acked) AS item
        WHERE item.remembered AND (packed_from IS NULL OR item.id < packed_from)
        ON CONFLICT (id) DO NOTHING;
    END IF;
    IF ends.keyed > 0 THEN
        WITH key_places AS MATERIALIZED (
            SELECT found.place FROM unnest(acked) AS item CROSS JOIN LATERAL (
                SELECT dedup.ctid AS place FROM dedup
                WHERE dedup.namespace_id = item.namespace_id AND dedup.key = item.idempotency_key
                    AND dedup.id = item.id OFFSET 0) AS found
            WHERE item.idempotency_key IS NOT NULL)
        UPDATE dedup SET until = shard_now() + interval '24 hours' FROM key_places
        WHERE dedup.ctid = key_places.place;
    END IF;
    o_ends := cardinality(ends.ids);
    IF o_ends > 0 THEN
        SELECT json_agg(CASE WHEN are_short AND news.token IS NULL
            THEN json_build_array(
                news.topic_id, news.priority, news.deliver_at, news.id, news.revived, news.is_ready)
            ELSE json_build_array(
                news.topic_id, news.priority, news.deliver_at, news.id, news.revived, news.is_ready, news.token,
                news.lease_until, news.payload, news.metadata, news.inputs, news.headers, news.attempt,
                news.enqueued_at, news.at_most_once, news.dag) END)::text
        INTO o_news
        FROM tell_acked(
            ends.ids, ends.topics, ends.ack_topics, ends.attempts, ends.outputs, ends.contexts, ends.started_ats,
            ends.workers, folds, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers,
            offer_bytes_max) AS news;
        RETURN NEXT;
    END IF;
END $$;
