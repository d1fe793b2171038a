-- Repairs of a queue shard. All follow a statement that lets one repair of a kind in at a time, and look again at
-- what they mend.

-- name: serialize(name)
SELECT pg_advisory_xact_lock(hashtextextended('headgate audit ' || current_schema() || $1, 0));

-- name: tell_end(item_id, topic, namespace, dag_shard, outcome, attempt, error, context)
-- The completion that the DAG service should have had, once more, in place of the one that was lost. Not while one
-- waits for it: the caller holds a lock, and this statement looks again.
SELECT e.o_id::text AS id FROM emit_completions(
    ARRAY[$1::uuid],
    ARRAY(SELECT topic_id FROM topic
        WHERE namespace_id = (SELECT namespace_id FROM namespace n WHERE n.name = $3) AND topic.name = $2),
    ARRAY(SELECT topic_id FROM topic
        WHERE namespace_id = (SELECT namespace_id FROM namespace n WHERE n.name = '_dag') AND topic.name = $4),
    ARRAY[$5::text], ARRAY[$6::int], ARRAY[NULL::text], ARRAY[$7::text], ARRAY[$8::text]) AS e;

-- name: place_item(id)
-- Back among the ready, with its counts; only where it is still nowhere.
WITH nowhere AS MATERIALIZED (
    SELECT id FROM item i WHERE id = $1::uuid
        AND NOT EXISTS (SELECT FROM ready r WHERE r.topic_id = i.topic_id AND r.id = i.id OFFSET 0)
        AND NOT EXISTS (SELECT FROM deferred d WHERE d.id = i.id OFFSET 0)
        AND NOT EXISTS (SELECT FROM parked p WHERE p.id = i.id OFFSET 0)
        AND NOT EXISTS (SELECT FROM lease l WHERE i.id = ANY (l.ids) OFFSET 0)
    FOR UPDATE),
moved AS (
    UPDATE item SET deliver_at = shard_now() WHERE id = ANY (ARRAY(SELECT id FROM nowhere))
    RETURNING id, topic_id, priority, deliver_at),
counted AS (INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, 0 FROM moved)
INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM moved RETURNING id::text;

-- name: drop_ready(id)
DELETE FROM ready r WHERE r.id = $1::uuid AND NOT EXISTS (
    SELECT FROM item i WHERE i.id = r.id AND i.topic_id = r.topic_id AND i.priority = r.priority
        AND i.deliver_at = r.deliver_at) RETURNING id::text;

-- name: drop_deferred(id)
DELETE FROM deferred d WHERE d.id = $1::uuid AND NOT EXISTS (
    SELECT FROM item i WHERE i.id = d.id AND i.deliver_at = d.due_at) RETURNING id::text;

-- name: drop_parked(id)
DELETE FROM parked p WHERE p.id = $1::uuid AND NOT EXISTS (SELECT FROM item i WHERE i.id = p.id) RETURNING id::text;

-- name: add_counts(topic_id, ready, delayed, leased, disabled, dead, bytes)
INSERT INTO stat_delta (topic_id, ready, delayed, leased, disabled, dead, bytes)
VALUES ($1, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint);
