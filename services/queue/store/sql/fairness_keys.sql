-- Lanes: see lane_places in the migrations, and services/queue/duties/fairness_keys.py.

-- name: lane_heads()
-- How far each topic and priority with lanes is served here; no head: nothing of it is ready.
SELECT c.topic_id, c.priority, h.deliver_at AS head
FROM lane_clock c
LEFT JOIN LATERAL (
    SELECT deliver_at FROM ready r
    WHERE r.topic_id = c.topic_id AND r.priority = c.priority AND r.deliver_at >= c.v_at
    ORDER BY r.priority, r.deliver_at, r.id LIMIT 1) AS h ON true
ORDER BY c.topic_id, c.priority;

-- name: set_lane_clock(topic_id, priority, v_at, is_shared)
-- Nothing is set where the topic is gone, or to be deleted.
WITH here AS MATERIALIZED (SELECT topic_id FROM topic WHERE topic_id = $1::int AND retiring IS NULL),
written AS (
    INSERT INTO lane_clock (topic_id, priority, v_at, is_shared)
    SELECT topic_id, $2::int, $3::timestamptz, $4::bool FROM here
    ON CONFLICT (topic_id, priority) DO UPDATE SET v_at = excluded.v_at, is_shared = excluded.is_shared
    WHERE (lane_clock.v_at, lane_clock.is_shared) <> (excluded.v_at, excluded.is_shared))
SELECT EXISTS (SELECT FROM here) AS is_here;

-- name: drop_lanes(topic_id, priority, v_at, limit)
-- Lanes that have nothing waiting: their next place lies behind what is being served.
DELETE FROM lane WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM lane WHERE topic_id = $1::int AND priority = $2::int AND next_at <= $3::timestamptz
    ORDER BY next_at LIMIT $4::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: drop_lane_clock(topic_id, priority)
DELETE FROM lane_clock WHERE topic_id = $1::int AND priority = $2::int
    AND NOT EXISTS (SELECT FROM lane WHERE lane.topic_id = $1::int AND lane.priority = $2::int);

-- name: adopt_strays(topic_id, priority, v_at, limit)
-- Ready items without a lane that stand behind all places given out: while lanes are busy their turn would never
-- come. They become a lane of their own, ''.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
last_place AS MATERIALIZED (
    SELECT next_at FROM lane WHERE topic_id = $1::int AND priority = $2::int AND next_at > $3::timestamptz
        AND EXISTS (SELECT FROM lane k WHERE k.topic_id = $1::int AND k.priority = $2::int
            AND k.next_at > $3::timestamptz AND k.key <> '')
    ORDER BY lane.next_at DESC LIMIT 1),
strays AS (
    DELETE FROM ready WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ready WHERE topic_id = $1::int AND priority = $2::int AND deliver_at >= (SELECT next_at
        FROM last_place)
        ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT $4::int FOR UPDATE SKIP LOCKED))
    RETURNING id, deliver_at),
found AS MATERIALIZED (
    SELECT i.place, strays.id, strays.deliver_at, row_number() OVER (ORDER BY strays.deliver_at, strays.id) AS nth
    FROM strays CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = strays.id OFFSET 0) AS i),
turns AS MATERIALIZED (
    SELECT lane_places(x.topics, x.priorities, x.keys, clock.at) AS places
    FROM clock, (SELECT array_agg($1::int) AS topics, array_agg($2::int) AS priorities, array_agg(''::text) AS keys
        FROM found) AS x),
adopted AS (
    UPDATE item i SET deliver_at = (SELECT places FROM turns)[found.nth], fairness_key = '', ready_at = found.deliver_at
    FROM found WHERE i.ctid = found.place
    RETURNING i.id, i.topic_id, i.priority, i.deliver_at),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM adopted)
SELECT id::text, topic_id, priority, deliver_at FROM adopted;
