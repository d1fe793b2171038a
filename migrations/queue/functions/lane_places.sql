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
    WITH w AS MATERIALIZED (
        SELECT u.*, row_number() OVER (PARTITION BY u.topic_id, u.priority, u.key ORDER BY u.nth) AS nth_in_lane
        FROM unnest(topic_ids, priorities, keys) WITH ORDINALITY AS u(topic_id, priority, key, nth)),
    v AS MATERIALIZED (
        SELECT t.topic_id, t.priority,
            CASE WHEN c.is_shared THEN c.v_at
                ELSE coalesce(h.deliver_at, c.v_at, date_trunc('hour', at)) END AS served_at
        FROM (SELECT DISTINCT w.topic_id, w.priority FROM w) AS t
        LEFT JOIN LATERAL (
            SELECT x.v_at, x.is_shared FROM lane_clock x
            WHERE x.topic_id = t.topic_id AND x.priority = t.priority OFFSET 0) AS c ON true
        LEFT JOIN LATERAL (
            SELECT r.deliver_at FROM ready r
            WHERE r.topic_id = t.topic_id AND r.priority = t.priority AND r.deliver_at >= c.v_at
                AND NOT c.is_shared
            ORDER BY r.priority, r.deliver_at, r.id LIMIT 1) AS h ON true),
    c AS (
        INSERT INTO lane_clock (topic_id, priority, v_at)
        SELECT v.topic_id, v.priority, v.served_at FROM v ORDER BY 1, 2
        ON CONFLICT DO NOTHING),
    l AS (
        INSERT INTO lane AS l (topic_id, priority, key, next_at, taken)
        SELECT g.topic_id, g.priority, g.key, v.served_at + (g.wanted + 1) * turn, g.wanted
        FROM (SELECT w.topic_id, w.priority, w.key, count(*)::int AS wanted FROM w GROUP BY 1, 2, 3) AS g
        JOIN v ON v.topic_id = g.topic_id AND v.priority = g.priority
        ORDER BY 1, 2, 3
        ON CONFLICT (topic_id, priority, key) DO UPDATE
            SET next_at = greatest(l.next_at + excluded.taken * turn, excluded.next_at), taken = excluded.taken
        RETURNING l.*)
    SELECT array_agg(l.next_at - (l.taken - w.nth_in_lane + 1) * turn ORDER BY w.nth) INTO places
    FROM w JOIN l ON l.topic_id = w.topic_id AND l.priority = w.priority AND l.key = w.key;
    RETURN places;
END $$;
