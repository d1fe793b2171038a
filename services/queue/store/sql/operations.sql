-- Operations: one row per shard says what is to be done to which items, and how far that has come.

-- columns: operation_columns
id::text, namespace, namespace_id, topic_id, kind, filter, state, cursor, total, scanned, changed, skipped, shards,
unplaced, cutoff, requested_at, finished_at

-- name: operation_scope(namespace, topic)
-- The numbers of a namespace and a topic (NULL: none here, or none asked for), and what they hold, by state; looked up
-- as in `usage`.
WITH asked AS MATERIALIZED (SELECT namespace_id FROM namespace WHERE name = $1::text),
named AS MATERIALIZED (
    SELECT t.topic_id FROM asked CROSS JOIN LATERAL (
        SELECT topic_id FROM topic
        WHERE topic.namespace_id = asked.namespace_id AND topic.name = $2::text OFFSET 0) AS t),
meant AS (
    SELECT topic_id FROM named
    UNION ALL
    SELECT t.topic_id FROM asked CROSS JOIN LATERAL (
        SELECT topic_id FROM topic WHERE topic.namespace_id = asked.namespace_id AND $2::text IS NULL OFFSET 0) AS t),
appended AS MATERIALIZED (
    SELECT topic_id, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, sum(disabled) AS disabled,
        sum(dead) AS dead
    FROM stat_delta WHERE $2::text IS NULL OR topic_id = (SELECT topic_id FROM named) GROUP BY topic_id),
counted AS (
    SELECT s.* FROM meant CROSS JOIN LATERAL (
        SELECT ready, delayed, leased, disabled, dead FROM topic_stat
        WHERE topic_stat.topic_id = meant.topic_id OFFSET 0) AS s
    UNION ALL
    SELECT a.ready, a.delayed, a.leased, a.disabled, a.dead FROM appended AS a
    CROSS JOIN LATERAL (SELECT namespace_id FROM topic WHERE topic.topic_id = a.topic_id OFFSET 0) AS t
    WHERE t.namespace_id = (SELECT namespace_id FROM asked))
SELECT (SELECT namespace_id FROM asked) AS namespace_id, (SELECT topic_id FROM named) AS topic_id, shard_now() AS at,
    coalesce(sum(ready), 0)::bigint AS ready, coalesce(sum(delayed), 0)::bigint AS delayed,
    coalesce(sum(leased), 0)::bigint AS leased, coalesce(sum(disabled), 0)::bigint AS disabled,
    coalesce(sum(dead), 0)::bigint AS dead
FROM counted;

-- name: place_operation(id, namespace, namespace_id, topic_id, kind, filter, state, total, shards, unplaced, cutoff, running_max)
-- No row: the namespace has too many running already, or this one is here.
INSERT INTO operation (id, namespace, namespace_id, topic_id, kind, filter, state, total, shards, unplaced, cutoff,
    requested_at, stepped_at, finished_at)
SELECT $1::uuid, $2::text, $3::int, $4::int, $5::text, $6::text, $7::text, $8::bigint, $9::int[], $10::int[],
    least($11::timestamptz, n.at), n.at, n.at, CASE WHEN $7::text <> 'running' THEN n.at END
FROM (SELECT shard_now() AS at) AS n
WHERE (SELECT count(*) FROM operation o WHERE o.state = 'running' AND o.namespace = $2::text) < $12::int
ON CONFLICT (id) DO NOTHING
RETURNING id::text;

-- name: is_operation(id)
SELECT id::text FROM operation WHERE id = $1::uuid;

-- name: operations_wait(age_s)
-- Whether there is anything to carry on: the one look that an idle shard costs.
SELECT EXISTS (SELECT FROM operation WHERE state = 'running') AS running,
    EXISTS (SELECT FROM operation WHERE unplaced <> '{}'
        AND requested_at <= (SELECT shard_now() - make_interval(secs => $1::float8))) AS unplaced;

-- name: next_operation()
-- The one that has waited longest; what another host is at is passed over.
SELECT {operation_columns} FROM operation WHERE state = 'running' ORDER BY stepped_at LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: lock_operation(id)
SELECT {operation_columns} FROM operation WHERE id = $1::uuid AND state = 'running' FOR UPDATE;

-- name: advance_operation(id, cursor, scanned, changed, skipped, finished)
UPDATE operation SET cursor = $2::text, scanned = scanned + $3::int, changed = changed + $4::int,
    skipped = skipped + $5::int, stepped_at = shard_now(),
    state = CASE WHEN $6::bool THEN 'done' ELSE state END,
    finished_at = CASE WHEN $6::bool THEN shard_now() END
WHERE id = $1::uuid;

-- name: operations(ids, namespace)
SELECT {operation_columns} FROM operation WHERE id = ANY ($1::uuid[]) AND namespace = $2::text;

-- name: list_operations(namespace, before_id, limit)
-- Newest first.
SELECT id::text FROM operation WHERE namespace = $1::text AND id < $2::uuid ORDER BY operation.id DESC LIMIT $3::int;

-- name: stop_operation(id, namespace)
UPDATE operation SET state = CASE WHEN state = 'running' THEN 'cancelled' ELSE state END,
    finished_at = coalesce(finished_at, shard_now()), unplaced = '{}'
WHERE id = $1::uuid AND namespace = $2::text AND (state = 'running' OR unplaced <> '{}');

-- name: lock_unplaced(age_s)
-- One that could not be written to all shards when it was asked for.
SELECT {operation_columns} FROM operation
WHERE unplaced <> '{}' AND requested_at <= (SELECT shard_now() - make_interval(secs => $1::float8))
ORDER BY requested_at LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: set_unplaced(id, unplaced)
UPDATE operation SET unplaced = $2::int[]
WHERE id = $1::uuid AND unplaced <> $2::int[];

-- name: drop_operations(age_s, limit)
DELETE FROM operation WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM operation
    WHERE state <> 'running' AND finished_at <= (SELECT shard_now() - make_interval(secs => $1::float8))
    ORDER BY finished_at LIMIT $2::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: look_by_id(namespace_id, topic_id, after_id, limit, scan_max)
-- Items of a namespace, or of one topic, by id. Looks at no more than scan_max rows; `last_id` is where that
-- ended, NULL at the end of the table. There is always a row.
WITH scanned AS MATERIALIZED (
    SELECT id, namespace_id, topic_id FROM item WHERE id > $3::uuid ORDER BY item.id LIMIT $5::int),
matching AS MATERIALIZED (
    SELECT id FROM scanned WHERE namespace_id = $1::int AND ($2::int IS NULL OR topic_id = $2::int)
    ORDER BY scanned.id LIMIT $4::int)
SELECT e.last_id::text, matching.id::text, i.topic_id, i.priority, i.deliver_at, p.parked_at, i.managed,
    i.enqueued_at, i.enqueued_at AS since, i.metadata, left(i.error, 500) AS error_head,
    right(i.error, 500) AS error_tail,
    CASE WHEN r.id IS NOT NULL THEN 'ready' WHEN d.id IS NOT NULL THEN 'delayed'
        ELSE coalesce(p.reason, 'leased') END AS state, NULL::text AS dag
FROM (SELECT (SELECT id FROM scanned ORDER BY scanned.id OFFSET $5::int - 1 LIMIT 1) AS last_id) AS e
LEFT JOIN matching ON true
LEFT JOIN LATERAL (SELECT * FROM item WHERE item.id = matching.id OFFSET 0) AS i ON true
LEFT JOIN LATERAL (
    SELECT id FROM ready WHERE ready.topic_id = i.topic_id AND ready.priority = i.priority
        AND ready.deliver_at = i.deliver_at AND ready.id = i.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (
    SELECT id FROM deferred WHERE deferred.due_at = i.deliver_at AND deferred.id = i.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT reason, parked_at FROM parked WHERE parked.id = i.id OFFSET 0) AS p ON true
ORDER BY matching.id;

-- name: look_at_ready(topic_id, after_priority, after_deliver_at, after_id, limit)
-- Ready items of a topic, in order of service.
SELECT k.id::text, i.topic_id, k.priority, k.deliver_at, NULL::timestamptz AS parked_at, i.managed, i.enqueued_at,
    i.enqueued_at AS since, i.metadata, left(i.error, 500) AS error_head, right(i.error, 500) AS error_tail,
    'ready' AS state, NULL::text AS dag
FROM (
    SELECT priority, deliver_at, id FROM ready
    WHERE topic_id = $1::int AND (priority, deliver_at, id) > ($2::int, $3::timestamptz, $4::uuid)
    ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT $5::int) AS k
CROSS JOIN LATERAL (SELECT * FROM item WHERE item.id = k.id OFFSET 0) AS i
ORDER BY k.priority, k.deliver_at, k.id;

-- name: look_at_dead(namespace_id, first_topic_id, last_topic_id, after_topic_id, after_at, after_id, limit)
-- Dead items of a range of a namespace's topics, by topic and time of death.
SELECT k.id::text, k.topic_id, i.priority, i.deliver_at, k.parked_at, k.managed, i.enqueued_at, k.parked_at AS since,
    i.metadata, left(i.error, 500) AS error_head, right(i.error, 500) AS error_tail, 'dead' AS state,
    CASE WHEN k.managed THEN i.ack_context END AS dag
FROM (
    SELECT topic_id, parked_at, id, managed FROM parked
    WHERE reason = 'dead' AND namespace_id = $1::int AND topic_id BETWEEN $2::int AND $3::int
        AND (topic_id, parked_at, id) > ($4::int, $5::timestamptz, $6::uuid)
    ORDER BY parked.topic_id, parked.parked_at, parked.id LIMIT $7::int) AS k
CROSS JOIN LATERAL (SELECT * FROM item WHERE item.id = k.id OFFSET 0) AS i
ORDER BY k.topic_id, k.parked_at, k.id;

-- name: take(ids, states)
-- Takes the membership rows of items that are in one of these states (never those of a lease); of the others it
-- says where they are.
WITH found AS MATERIALIZED (SELECT id, topic_id, priority, deliver_at FROM item WHERE id = ANY ($1::uuid[])),
{places_part}
parked_places AS MATERIALIZED (
    SELECT w.id, q.place, q.reason FROM unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (SELECT ctid AS place, reason FROM parked WHERE parked.id = w.id OFFSET 0) AS q),
left_ready AS (DELETE FROM ready USING ready_places WHERE ready.ctid = ready_places.place
    AND 'ready' = ANY ($2::text[]) RETURNING ready.id),
left_deferred AS (
    DELETE FROM deferred USING deferred_places WHERE deferred.ctid = deferred_places.place
        AND 'delayed' = ANY ($2::text[])
    RETURNING deferred.id),
left_parked AS (
    DELETE FROM parked USING parked_places WHERE parked.ctid = parked_places.place
        AND parked_places.reason = ANY ($2::text[])
    RETURNING parked.id, parked.reason)
SELECT id::text, 'ready' AS state, true AS taken FROM left_ready
UNION ALL SELECT id::text, 'delayed', true FROM left_deferred
UNION ALL SELECT id::text, reason, true FROM left_parked
UNION ALL SELECT id::text, 'ready', false FROM ready_places WHERE NOT 'ready' = ANY ($2::text[])
UNION ALL SELECT id::text, 'delayed', false FROM deferred_places WHERE NOT 'delayed' = ANY ($2::text[])
UNION ALL SELECT id::text, reason, false FROM parked_places WHERE NOT reason = ANY ($2::text[]);
