-- Of these topics (sorted), those that hold nothing, were never set anything, and are not referred to: as one snapshot
-- has it. A setting that was taken away is kept too: a shard that missed that would bring the former one back.
-- Whether an item is of a topic is told by the exact counts, folded and appended. A lease that remembers acked items
-- may still name a topic; only living items are looked at by it.
CREATE OR REPLACE FUNCTION free_topics(wanted int[]) RETURNS SETOF int LANGUAGE sql STABLE AS $$
    SELECT t.topic_id
    FROM unnest(wanted) AS asked(topic_id)
    CROSS JOIN LATERAL (
        SELECT topic_id FROM topic
        WHERE topic.topic_id = asked.topic_id AND paused_at IS NULL AND min_share_at IS NULL
            AND limits_at IS NULL
            AND namespace_id <> (SELECT namespace_id FROM namespace WHERE name = '_dag') OFFSET 0) AS t
    CROSS JOIN LATERAL (
        SELECT true AS is_empty FROM topic_stat
        WHERE topic_stat.topic_id = t.topic_id
            AND ready = 0 AND delayed = 0 AND leased = 0 AND disabled = 0 AND dead = 0 OFFSET 0) AS folded
    WHERE t.topic_id <> ALL (ARRAY(
            SELECT topic_id FROM stat_delta WHERE wanted[width_bucket(topic_id, wanted)] = topic_id))
        AND NOT EXISTS (SELECT FROM ready WHERE ready.topic_id = t.topic_id OFFSET 0)
        AND NOT EXISTS (SELECT FROM lane WHERE lane.topic_id = t.topic_id OFFSET 0)
        AND NOT EXISTS (SELECT FROM lane_clock WHERE lane_clock.topic_id = t.topic_id OFFSET 0)
        AND NOT EXISTS (SELECT FROM item WHERE item.ack_topic_id = t.topic_id AND NOT managed OFFSET 0)
$$;
