-- A DAG shard by itself. Read in one snapshot, in stretches of numbers. Rows are looked up one by one, by their keys:
-- OFFSET 0 keeps a planner that takes a table for small from reading it from end to end for each row of another.

-- name: dags_page(after_no, dag_id, since, rows_max)
-- DAGs, and whether a transaction has left work to be gone on with, which explains what is not counted yet; and of
-- those being cancelled, whether the queue is still to be told of items.
-- Those on their way out of the hot tables are left out: their rows are in two places. So are those whose nodes a
-- retry reopens: what is counted in them it counts anew.
SELECT d.no, d.id::text, d.state,
    EXISTS (SELECT FROM spread s WHERE s.node_no >= d.no << 22 AND s.node_no < (d.no + 1) << 22)
        OR EXISTS (SELECT FROM scan s WHERE s.dag_no = d.no OFFSET 0) AS walking,
    d.state = 'cancelling' AND EXISTS (SELECT FROM scan s WHERE s.dag_no = d.no OFFSET 0) AS cancelling
FROM dag d
WHERE d.no > $1 AND ($2::uuid IS NULL OR d.id = $2) AND ($3::timestamptz IS NULL OR d.created_at >= $3)
    AND NOT EXISTS (
        SELECT FROM (SELECT phase FROM kept WHERE kept.dag_no = d.no OFFSET 0) AS k
        WHERE k.phase IN ('moving', 'thawing', 'dropping'))
    AND d.cleanup_phase >= 0
ORDER BY d.no LIMIT $4;

-- name: wrong_totals(nos)
SELECT d.no, d.id::text FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT * FROM dag WHERE dag.no = w.no OFFSET 0) AS d
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'blocked') AS blocked,
        count(*) FILTER (WHERE state = 'released') AS released,
        count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE state = 'skipped') AS skipped,
        count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE state = 'failed' AND tolerate) AS tolerated
    FROM (SELECT state, tolerate FROM node WHERE no >= d.no << 22 AND no < (d.no + 1) << 22
        UNION ALL SELECT state, tolerate FROM kept_node WHERE no >= d.no << 22 AND no < (d.no + 1) << 22) AS n) AS f
WHERE (d.blocked, d.released, d.succeeded, d.failed, d.skipped, d.cancelled, d.tolerated)
    <> (f.blocked, f.released, f.succeeded, f.failed, f.skipped, f.cancelled, f.tolerated);

-- name: unended(nos)
-- Which of these have come to their end and do not say so; totals decide it, as in the service. What cleans up
-- once its DAG's end is decided is left out: it comes by turns.
SELECT d.no, d.id::text FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT * FROM dag WHERE dag.no = w.no OFFSET 0) AS d
WHERE state IN ('running', 'cancelling') AND blocked + released <= cleanup_left AND (cleanup_left = 0 OR verdict IS NULL)
    AND (state = 'cancelling' OR NOT open AND NOT held
        AND (closed OR blocked + released + succeeded + failed + skipped + cancelled > 0))
ORDER BY d.no;

-- name: ended_early(nos)
-- Which of these say that they have ended, and have nodes that have not: of a run, also its code.
SELECT d.no, d.id::text FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT * FROM dag WHERE dag.no = w.no OFFSET 0) AS d
WHERE d.state NOT IN ('running', 'cancelling') AND (d.blocked + d.released > 0
    OR EXISTS (SELECT FROM (SELECT state FROM run WHERE run.dag_no = d.no OFFSET 0) AS r WHERE r.state = 'running'))
ORDER BY d.no;

-- name: wrong_nodes(after_no, last_no, rows_max)
-- Of the next nodes: which disagree with the facts, and where the stretch ends. A node that was decided keeps the
-- counts it was decided by; a terminal upstream's edge is flipped, but for what a walk has still to do.
WITH page AS MATERIALIZED (SELECT * FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $3)
SELECT n.no, n.key, n.up_left <> f.unflipped OR n.ext_left <> x.open
        OR (n.state = 'blocked' AND (n.up_ok <> f.ok OR n.up_failed <> f.failed
            OR n.up_skipped <> f.skipped OR n.up_cancelled <> f.cancelled OR f.early > 0)) AS counters,
    n.state = 'blocked' AND f.late > 0 AND d.state = 'running' AS unflipped,
    n.state = 'blocked' AND n.run_on IS NULL AND (
        d.state = 'running' AND NOT d.held AND NOT d.paused AND n.up_left = 0 AND n.ext_left = 0
            -- A run's decider is parked until its code is to be told something.
            AND (d.workflow IS NULL OR n.no <> d.no << 22
                OR EXISTS (SELECT FROM run WHERE run.dag_no = d.no AND run.last_told > run.seen OFFSET 0))
        OR d.state = 'cancelling' AND NOT EXISTS (SELECT FROM outbox o WHERE o.node_no = n.no OFFSET 0)) AS stuck
FROM page n
CROSS JOIN LATERAL (SELECT * FROM dag WHERE dag.no = n.dag_no OFFSET 0) AS d
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE NOT e.satisfied) AS unflipped,
        count(*) FILTER (WHERE e.satisfied AND u.state = 'succeeded') AS ok,
        count(*) FILTER (WHERE e.satisfied AND u.state = 'failed') AS failed,
        count(*) FILTER (WHERE e.satisfied AND u.state = 'skipped') AS skipped,
        count(*) FILTER (WHERE e.satisfied AND u.state = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE e.satisfied AND u.state IN ('blocked', 'released')) AS early,
        count(*) FILTER (WHERE NOT e.satisfied AND u.state NOT IN ('blocked', 'released')) AS late
    FROM edge e CROSS JOIN LATERAL (SELECT state FROM node WHERE node.no = e.up OFFSET 0) AS u
    WHERE e.down = n.no) AS f
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE resolved_at IS NULL) AS open FROM external
    WHERE dag_no = n.dag_no AND node_key = n.key AND declared) AS x
WHERE n.up_left <> f.unflipped OR n.ext_left <> x.open
    OR n.state = 'blocked' AND (n.up_ok <> f.ok OR n.up_failed <> f.failed OR n.up_skipped <> f.skipped
        OR n.up_cancelled <> f.cancelled OR f.early > 0 OR f.late > 0 OR (n.up_left = 0 AND n.ext_left = 0)
        OR d.state = 'cancelling')
ORDER BY n.no;

-- name: stretch(after_no, last_no, rows_max)
-- How far the next stretch of nodes goes.
SELECT max(no) AS last_no, count(*)::int AS rows FROM (
    SELECT no FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $3) AS page;

-- name: old_outbox(age_s, dag_no, rows_max)
SELECT o.node_no, o.action, d.id::text, n.key FROM outbox o
CROSS JOIN LATERAL (SELECT no, id FROM dag WHERE dag.no = o.node_no >> 22 OFFSET 0) AS d
LEFT JOIN LATERAL (SELECT key FROM node WHERE node.no = o.node_no OFFSET 0) AS n ON true
WHERE o.created_at <= shard_now() - make_interval(secs => $1::float8) AND ($2::bigint IS NULL OR d.no = $2)
ORDER BY o.node_no LIMIT $3;

-- name: lost_timers(after_no, last_no)
SELECT n.no, n.key FROM node n WHERE n.no > $1 AND n.no <= $2 AND n.timer AND n.state = 'released'
    AND NOT EXISTS (SELECT FROM timer t WHERE t.node_no = n.no AND t.generation = n.generation OFFSET 0);

-- name: old_adding(age_s, dag_no, rows_max)
SELECT a.first_no, d.id::text FROM adding a
CROSS JOIN LATERAL (SELECT no, id FROM dag WHERE dag.no = a.first_no >> 22 OFFSET 0) AS d
WHERE a.started_at <= shard_now() - make_interval(secs => $1::float8) AND ($2::bigint IS NULL OR d.no = $2)
ORDER BY a.first_no LIMIT $3;

-- name: waiting_page(after_no, last_no, age_s, rows_max)
-- Nodes whose items the queue should have, or have ended: released for long, or blocked with an item that was given
-- to the queue disabled; and nothing is left to be told. Of sub-DAGs, those that should have been begun.
SELECT n.no, n.dag_no, d.id::text AS dag, d.namespace, n.key, n.state, n.generation, n.item_id::text, n.topic,
    n.pass_outputs, n.sub
FROM (SELECT * FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $4) AS n
CROSS JOIN LATERAL (SELECT id, namespace, state FROM dag WHERE dag.no = n.dag_no OFFSET 0) AS d
WHERE NOT n.timer AND (n.state = 'released' AND n.released_at <= shard_now() - make_interval(secs => $3::float8)
        OR n.state = 'blocked' AND n.enqueued AND d.state = 'running'
            AND n.created_at <= shard_now() - make_interval(secs => $3::float8))
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.node_no = n.no OFFSET 0)
    AND NOT EXISTS (SELECT FROM adding a WHERE n.no BETWEEN a.first_no AND a.last_no OFFSET 0);

-- name: still_waiting(nos, generations, states)
SELECT n.no FROM unnest($1::bigint[], $2::int[], $3::text[]) AS w(no, generation, state)
CROSS JOIN LATERAL (SELECT no, state, generation FROM node WHERE node.no = w.no OFFSET 0) AS n
WHERE n.state = w.state AND n.generation = w.generation
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.node_no = n.no OFFSET 0);

-- name: sub_facts(ids)
-- What is known of the DAGs that run in nodes' places: for which generation, whether they have ended, whether their
-- ends are still to be told.
SELECT d.id::text, d.no, coalesce(d.parent_generation, 0) AS generation,
    d.state NOT IN ('running', 'cancelling')
        AND NOT EXISTS (
            SELECT FROM (SELECT state FROM run WHERE run.dag_no = d.no OFFSET 0) AS r WHERE r.state = 'continued'
        ) AS over,
    EXISTS (SELECT FROM outbox o WHERE o.node_no = d.no << 22 AND o.action = 'report' OFFSET 0) AS telling
FROM unnest($1::uuid[]) AS w(id) CROSS JOIN LATERAL (
    SELECT no, id, state, parent_generation FROM dag WHERE dag.id = w.id OFFSET 0) AS d;

-- name: owners(dags, keys, item_ids)
-- Which of these items their nodes know: unfinished ones have them, and the queue is still to be told of others.
SELECT w.item_id::text FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS w(dag, key, item_id)
CROSS JOIN LATERAL (SELECT no FROM dag WHERE dag.id = w.dag OFFSET 0) AS d
CROSS JOIN LATERAL (
    SELECT no, item_id, state FROM node WHERE node.dag_no = d.no AND node.key = w.key OFFSET 0) AS n
WHERE (n.item_id = w.item_id AND n.state IN ('blocked', 'released'))
    OR EXISTS (SELECT FROM outbox o WHERE o.node_no = n.no AND o.item_id = w.item_id OFFSET 0);
