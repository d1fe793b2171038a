-- As `revive_here` for one item, which it mostly is, without the parts that tell items and offers apart.
CREATE OR REPLACE FUNCTION revive_one(
    wanted uuid, given_inputs text, offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[],
    offer_maxima int[], offer_workers text[])
RETURNS told LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at CONSTANT timestamptz := shard_now();
    revived item;
    is_ready boolean;
    nth int;
    lease_until timestamptz;
BEGIN
    DELETE FROM parked WHERE parked.ctid = (
        SELECT p.ctid FROM parked AS p WHERE p.id = wanted AND p.reason = 'disabled' FOR UPDATE SKIP LOCKED);
    IF FOUND THEN
        UPDATE item i SET
            inputs = coalesce(given_inputs, i.inputs),
            deliver_at = greatest(at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
            expires_at = at + make_interval(secs => i.ttl_s)
        WHERE i.id = wanted RETURNING i.* INTO revived;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an item is not there to be revived' USING ERRCODE = 'no_data_found';
    END IF;
    is_ready := revived.deliver_at <= at AND revived.fairness_key IS NULL;
    nth := array_position(offer_topic_ids, revived.topic_id);
    IF is_ready AND offer_maxima[nth] > 0
        AND NOT EXISTS (SELECT FROM topic WHERE topic.topic_id = revived.topic_id AND topic.paused)
    THEN
        lease_until := least(
            at + make_interval(
                secs => least(revived.timeout_s, coalesce(nullif(offer_lease_ss[nth], 0), revived.lease_s))),
            CASE WHEN revived.is_deadline THEN revived.expires_at END);
        WITH leased AS (
            INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker)
            VALUES (offer_tokens[nth], lease_until, revived.namespace_id, revived.topic_id, ARRAY[revived.id],
                offer_workers[nth]))
        INSERT INTO stat_delta VALUES (revived.topic_id, 0, 0, 1, -1, 0);
        RETURN ROW(
            revived.topic_id, revived.priority, revived.deliver_at, revived.id, true, true, offer_tokens[nth],
            lease_until, revived.payload, revived.metadata, revived.inputs, revived.headers, revived.attempts + 1,
            revived.enqueued_at, revived.at_most_once,
            CASE WHEN revived.managed THEN revived.ack_context END)::told;
    END IF;
    IF is_ready THEN
        WITH to_ready AS (
            INSERT INTO ready VALUES (revived.topic_id, revived.priority, revived.deliver_at, revived.id))
        INSERT INTO stat_delta VALUES (revived.topic_id, 1, 0, 0, -1, 0);
    ELSE
        WITH to_deferred AS (INSERT INTO deferred VALUES (revived.deliver_at, revived.id))
        INSERT INTO stat_delta VALUES (revived.topic_id, 0, 1, 0, -1, 0);
    END IF;
    RETURN ROW(
        revived.topic_id, revived.priority, revived.deliver_at, revived.id, true, is_ready, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL)::told;
END $$;
