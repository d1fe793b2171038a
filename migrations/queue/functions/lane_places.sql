-- Places in `ready` for items of lanes, in the order of the arrays. Start-time fair queueing (Goyal, Vin and
-- Cheng, 1996) with a quantum of one microsecond: an item's place is one behind the last of its lane, but not
-- before the round after the one being served. The order of service stays the order of the index. Where no lane
-- is at work the count begins with the hour, so that shards which begin at the same time begin with the same.
CREATE OR REPLACE FUNCTION lane_places(topic_ids int[], priorities int[], keys text[], at timestamptz)
RETURNS timestamptz[] LANGUAGE plpgsql VOLATILE STRICT SET enable_hashjoin = on AS $$
DECLARE
    turn interval := interval '1 microsecond';
    places timestamptz[];
BEGIN
    WITH numbered AS MATERIALIZED (
        SELECT u.*, row_number() OVER (PARTITION BY u.topic_id, u.priority, u.key ORDER BY u.nth) AS nth_in_lane
        FROM unnest(topic_ids, priorities, keys) WITH ORDINALITY AS u(topic_id, priority, key, nth)),
    served AS MATERIALIZED (
        SELECT t.topic_id, t.priority,
            CASE WHEN c.is_shared THEN c.v_at
                ELSE coalesce(h.deliver_at, c.v_at, date_trunc('hour', at)) END AS served_at
        FROM (SELECT DISTINCT numbered.topic_id, numbered.priority FROM numbered) AS t
        LEFT JOIN LATERAL (
            SELECT x.v_at, x.is_shared FROM lane_clock x
            WHERE x.topic_id = t.topic_id AND x.priority = t.priority OFFSET 0) AS c ON true
        LEFT JOIN LATERAL (
            SELECT r.deliver_at FROM ready r
            WHERE r.topic_id = t.topic_id AND r.priority = t.priority AND r.deliver_at >= c.v_at
                AND NOT c.is_shared
            ORDER BY r.priority, r.deliver_at, r.id LIMIT 1) AS h ON true),
    clocks AS (
        INSERT INTO lane_clock (topic_id, priority, v_at)
        SELECT served.topic_id, served.priority, served.served_at FROM served ORDER BY 1, 2
        ON CONFLICT DO NOTHING),
    lanes AS (
        INSERT INTO lane AS l (topic_id, priority, key, next_at, taken)
        SELECT g.topic_id, g.priority, g.key, served.served_at + (g.wanted + 1) * turn, g.wanted
        FROM (SELECT numbered.topic_id, numbered.priority, numbered.key, count(*)::int AS wanted FROM numbered
        GROUP BY 1, 2, 3) AS g
        JOIN served ON served.topic_id = g.topic_id AND served.priority = g.priority
        ORDER BY 1, 2, 3
        ON CONFLICT (topic_id, priority, key) DO UPDATE
            SET next_at = greatest(l.next_at + excluded.taken * turn, excluded.next_at), taken = excluded.taken
        RETURNING l.*)
    SELECT array_agg(lanes.next_at - (lanes.taken - numbered.nth_in_lane + 1) * turn ORDER BY numbered.nth) INTO places
    FROM numbered JOIN lanes ON lanes.topic_id = numbered.topic_id AND lanes.priority = numbered.priority
        AND lanes.key = numbered.key;
    RETURN places;
END $$;
