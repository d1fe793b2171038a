-- Repairs. Those of a DAG follow a statement that locks its row; each looks again at what it mends.

-- name: lock_dag(no)
SELECT no, state, id::text FROM dag WHERE no = $1 FOR UPDATE;

-- name: recount_totals(no)
UPDATE dag SET intent = f.intent, blocked = f.blocked, released = f.released, succeeded = f.succeeded,
    failed = f.failed, skipped = f.skipped, cancelled = f.cancelled
FROM (SELECT count(*) FILTER (WHERE state = 'intent') AS intent,
        count(*) FILTER (WHERE state = 'blocked') AS blocked,
        count(*) FILTER (WHERE state = 'released') AS released,
        count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE state = 'skipped') AS skipped,
        count(*) FILTER (WHERE state = 'cancelled') AS cancelled
    FROM (SELECT state FROM node WHERE no >= $1::bigint << 22 AND no < ($1::bigint + 1) << 22
        UNION ALL SELECT state FROM kept_node WHERE no >= $1::bigint << 22 AND no < ($1::bigint + 1) << 22) AS n) AS f
WHERE dag.no = $1 AND
    (dag.intent, dag.blocked, dag.released, dag.succeeded, dag.failed, dag.skipped, dag.cancelled)
    <> (f.intent, f.blocked, f.released, f.succeeded, f.failed, f.skipped, f.cancelled)
RETURNING dag.no;

-- name: flag_edges(nos)
-- Edges into nodes that are not decided yet, by how their upstreams stand now. In a DAG that is being cancelled they
-- stay as they are: nothing is decided by them there.
UPDATE edge SET satisfied = u.state NOT IN ('intent', 'blocked', 'released')
FROM node c, node u, dag d
WHERE edge.down = ANY ($1::bigint[]) AND c.no = edge.down AND u.no = edge.up AND d.no = c.dag_no
    AND c.state IN ('intent', 'blocked') AND d.state = 'running'
    AND edge.satisfied <> (u.state NOT IN ('intent', 'blocked', 'released'));

-- name: recount_nodes(nos)
WITH facts AS MATERIALIZED (
    SELECT n.no, f.*, x.open FROM node n
    CROSS JOIN LATERAL (
        SELECT (count(*) FILTER (WHERE NOT e.satisfied))::int AS unflipped,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'succeeded'))::int AS ok,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'failed'))::int AS failed,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'skipped'))::int AS skipped,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'cancelled'))::int AS cancelled
        FROM edge e JOIN node u ON u.no = e.up WHERE e.down = n.no) AS f
    CROSS JOIN LATERAL (
        SELECT (count(*) FILTER (WHERE resolved_at IS NULL))::int AS open FROM external
        WHERE dag_no = n.dag_no AND node_key = n.key AND declared) AS x
    WHERE n.no = ANY ($1::bigint[]))
UPDATE node SET up_left = f.unflipped, ext_left = f.open,
    up_ok = CASE WHEN state IN ('intent', 'blocked') THEN f.ok ELSE up_ok END,
    up_failed = CASE WHEN state IN ('intent', 'blocked') THEN f.failed ELSE up_failed END,
    up_skipped = CASE WHEN state IN ('intent', 'blocked') THEN f.skipped ELSE up_skipped END,
    up_cancelled = CASE WHEN state IN ('intent', 'blocked') THEN f.cancelled ELSE up_cancelled END
FROM facts f WHERE node.no = f.no
RETURNING node.no;

-- name: decide_again(no)
-- The service walks over the DAG's blocked nodes and decides each.
INSERT INTO scan (dag_no, kind, after_no) SELECT no, 'release', (no << 22) - 1 FROM dag WHERE no = $1 AND state = 'running'
ON CONFLICT (dag_no, kind) DO UPDATE SET after_no = excluded.after_no;

-- name: send_again(node_no, generation, item_id, inputs)
-- The queue is told once more; where it knows nothing of the item, the service makes it, or another.
INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
SELECT no, generation, 'revive', item_id, $4, shard_now(), shard_now() FROM node
WHERE no = $1 AND generation = $2 AND item_id = $3::uuid AND state = 'released'
ON CONFLICT (node_no, generation, action) DO NOTHING
RETURNING node_no;

-- name: serialize(name)
SELECT pg_advisory_xact_lock(hashtextextended('headgate audit ' || current_schema() || $1, 0));

-- name: tell_end(item_id, topic, namespace, dag_shard, outcome, attempt, error, context)
-- The completion that the DAG service should have had, once more, in place of the one that was lost. Not while one
-- waits for it: the caller holds a lock, and this statement looks again.
SELECT e.o_id::text AS id FROM emit_completions(
    ARRAY[$1::uuid],
    ARRAY(SELECT t.topic_id FROM topic t JOIN namespace n USING (namespace_id) WHERE n.name = $3 AND t.name = $2),
    ARRAY(SELECT t.topic_id FROM topic t JOIN namespace n USING (namespace_id) WHERE n.name = '_dag' AND t.name = $4),
    ARRAY[$5::text], ARRAY[$6::int], ARRAY[NULL::text], ARRAY[$7::text], ARRAY[$8::text]) AS e;

-- name: place_item(id)
-- Back among the ready, with its counts; only where it is still nowhere.
WITH nowhere AS MATERIALIZED (
    SELECT id, topic_id, priority FROM item i WHERE id = $1::uuid
        AND NOT EXISTS (SELECT FROM ready r WHERE r.id = i.id AND r.topic_id = i.topic_id)
        AND NOT EXISTS (SELECT FROM deferred d WHERE d.id = i.id)
        AND NOT EXISTS (SELECT FROM parked p WHERE p.id = i.id)
        AND NOT EXISTS (SELECT FROM lease l WHERE i.id = ANY (l.ids))
    FOR UPDATE),
moved AS (
    UPDATE item i SET deliver_at = shard_now() FROM nowhere w WHERE i.id = w.id
    RETURNING i.id, i.topic_id, i.priority, i.deliver_at),
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
