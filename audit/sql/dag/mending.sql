-- Repairs of a DAG shard. All follow a statement that locks the DAG's row, and look again at what they mend.

-- name: lock_dag(no)
SELECT no, state, id::text FROM dag WHERE no = $1 FOR UPDATE;

-- name: recount_totals(no)
UPDATE dag SET blocked = f.blocked, released = f.released, succeeded = f.succeeded,
    failed = f.failed, skipped = f.skipped, cancelled = f.cancelled, tolerated = f.tolerated
FROM (SELECT count(*) FILTER (WHERE state = 'blocked') AS blocked,
        count(*) FILTER (WHERE state = 'released') AS released,
        count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE state = 'skipped') AS skipped,
        count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE state = 'failed' AND tolerate) AS tolerated
    FROM (SELECT state, tolerate FROM node WHERE no >= $1::bigint << 22 AND no < ($1::bigint + 1) << 22
        UNION ALL SELECT state, tolerate FROM kept_node WHERE no >= $1::bigint << 22 AND no < ($1::bigint + 1) << 22) AS n) AS f
WHERE dag.no = $1 AND
    (dag.blocked, dag.released, dag.succeeded, dag.failed, dag.skipped, dag.cancelled,
        dag.tolerated)
    <> (f.blocked, f.released, f.succeeded, f.failed, f.skipped, f.cancelled, f.tolerated)
RETURNING dag.no;

-- name: flag_edges(nos)
-- Edges into nodes that are not decided yet, by how their upstreams stand now. In a DAG that is being cancelled they
-- stay as they are: nothing is decided by them there.
UPDATE edge SET satisfied = NOT edge.satisfied
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT dag_no, state FROM node WHERE node.no = w.no OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT state FROM dag WHERE dag.no = n.dag_no OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT ctid AS place, up, satisfied FROM edge WHERE edge.down = w.no OFFSET 0) AS e
CROSS JOIN LATERAL (SELECT state FROM node WHERE node.no = e.up OFFSET 0) AS u
WHERE edge.ctid = e.place AND n.state = 'blocked' AND d.state = 'running'
    AND e.satisfied <> (u.state NOT IN ('blocked', 'released'));

-- name: recount_nodes(nos)
WITH facts AS MATERIALIZED (
    SELECT n.place, f.*, x.open FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT ctid AS place, no, dag_no, key FROM node WHERE node.no = w.no OFFSET 0) AS n
    CROSS JOIN LATERAL (
        SELECT (count(*) FILTER (WHERE NOT e.satisfied))::int AS unflipped,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'succeeded'))::int AS ok,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'failed'))::int AS failed,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'skipped'))::int AS skipped,
            (count(*) FILTER (WHERE e.satisfied AND u.state = 'cancelled'))::int AS cancelled
        FROM edge e CROSS JOIN LATERAL (SELECT state FROM node WHERE node.no = e.up OFFSET 0) AS u
        WHERE e.down = n.no) AS f
    CROSS JOIN LATERAL (
        SELECT (count(*) FILTER (WHERE resolved_at IS NULL))::int AS open FROM external
        WHERE dag_no = n.dag_no AND node_key = n.key AND declared) AS x)
UPDATE node SET up_left = f.unflipped, ext_left = f.open,
    up_ok = CASE WHEN state = 'blocked' THEN f.ok ELSE up_ok END,
    up_failed = CASE WHEN state = 'blocked' THEN f.failed ELSE up_failed END,
    up_skipped = CASE WHEN state = 'blocked' THEN f.skipped ELSE up_skipped END,
    up_cancelled = CASE WHEN state = 'blocked' THEN f.cancelled ELSE up_cancelled END
FROM facts f WHERE node.ctid = f.place
RETURNING node.no;

-- name: decide_again(no)
-- The service walks over the DAG's nodes once more: decides each blocked one, or tells the queue to cancel each that
-- is unfinished; and looks at last whether the DAG has ended.
INSERT INTO scan (dag_no, kind, after_no)
SELECT no, CASE state WHEN 'running' THEN 'release' ELSE 'cancel' END, (no << 22) - 1 FROM (SELECT no, state FROM dag WHERE no = $1 OFFSET 0) AS d
WHERE state IN ('running', 'cancelling')
ON CONFLICT (dag_no, kind) DO UPDATE SET after_no = excluded.after_no;

-- name: send_again(node_no, generation, item_id, inputs)
-- The queue is told once more; where it knows nothing of the item, the service makes it, or another. What a DAG that
-- is being cancelled has out is not to run.
INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
SELECT n.no, n.generation, CASE WHEN d.state = 'cancelling' AND n.run_on IS NULL
        THEN CASE WHEN n.sub THEN 'stop' ELSE 'cancel' END
        ELSE CASE WHEN n.sub THEN 'start' ELSE 'revive' END END, n.item_id, $4, shard_now(), shard_now()
FROM (SELECT * FROM node WHERE no = $1 OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT state FROM dag WHERE dag.no = n.dag_no OFFSET 0) AS d
WHERE n.generation = $2 AND n.item_id = $3::uuid AND n.state = 'released'
ON CONFLICT (node_no, generation, action) DO NOTHING
RETURNING node_no;

-- name: make_anew(node_no, generation, item_id)
-- A blocked node of whose item the queue knows nothing is one that was never given to it: it is made at the release.
UPDATE node SET enqueued = false
WHERE no = $1 AND generation = $2 AND item_id = $3::uuid AND state = 'blocked' AND enqueued
RETURNING no;

-- name: report_again(no)
-- The node in whose place an ended DAG ran is told its end once more.
INSERT INTO outbox (node_no, generation, action, item_id, created_at, due_at)
SELECT no << 22, endings, 'report', parent_dag, shard_now(), shard_now() FROM dag
WHERE no = $1 AND parent_dag IS NOT NULL AND state NOT IN ('running', 'cancelling')
ON CONFLICT (node_no, generation, action) DO NOTHING
RETURNING node_no;

-- name: restart_timer(node_no)
-- A timer that runs gets back the row by which it ends.
INSERT INTO timer (node_no, generation, due_at, look_at)
SELECT n.no, n.generation, due.at, due.at FROM node n JOIN node_spec s ON s.node_no = n.no
CROSS JOIN LATERAL (
    SELECT coalesce((s.item::json ->> 'at')::timestamptz,
        n.released_at + make_interval(secs => (s.item::json ->> 'delay_s')::float8)) AS at) AS due
WHERE n.no = $1 AND n.timer AND n.state = 'released'
ON CONFLICT (node_no) DO UPDATE SET generation = excluded.generation, due_at = excluded.due_at,
    look_at = excluded.look_at
RETURNING node_no;
