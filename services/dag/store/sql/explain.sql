-- What a DAG waits for, and how long the way still is; no locks.

-- name: frontier_page(after_no, last_no, rows_max)
-- Nodes that are out, or whose upstreams would let them go: what keeps the latter is not in the graph.
SELECT no, key, item_id::text, state, generation, topic, sub, timer, created_at, released_at, ext_left,
    up_left + up_ok + up_failed + up_skipped + up_cancelled AS upstreams
FROM node
WHERE no > $1 AND no <= $2 AND (state = 'released' OR (state = 'blocked' AND run_on IS NULL AND CASE trigger
    WHEN 'any_succeeded' THEN up_ok > 0 WHEN 'any_failed' THEN up_failed > 0 ELSE up_left = 0 END))
ORDER BY no LIMIT $3;

-- name: upstreams_ended(nos)
-- When the last upstream of each that has ended did so.
SELECT w.no, (
    SELECT max(u.finished_at) FROM edge
    CROSS JOIN LATERAL (SELECT finished_at FROM node WHERE no = edge.up OFFSET 0) AS u
    WHERE edge.down = w.no) AS at
FROM unnest($1::bigint[]) AS w(no);

-- name: open_externals(dag_no, keys)
-- What these nodes have declared and is not resolved.
SELECT x.* FROM unnest($2::text[]) AS w(key)
CROSS JOIN LATERAL (
    SELECT node_key, name FROM external
    WHERE dag_no = $1 AND node_key = w.key AND declared AND resolved_at IS NULL ORDER BY name OFFSET 0) AS x;

-- name: kept_by_externals(namespace, after_id, dags_max, externals_max)
-- The DAGs of a namespace that run and have externals, those that run longest first; of each the first node in the
-- order of its open externals that nothing else keeps (NULL: there is none among so many), and what it waits for.
SELECT d.id::text AS dag_id, d.name AS dag_name, d.key AS dag_key, d.blocked, w.no, coalesce(w.key, '') AS key,
    coalesce(w.external, '') AS external, coalesce(w.ext_left, 0) AS ext_left, coalesce(w.generation, 1) AS generation,
    coalesce(w.item_id, d.id)::text AS item_id, coalesce(w.created_at, d.created_at) AS created_at,
    coalesce(w.upstreams, 0) AS upstreams
FROM (
    SELECT no, id, name, key, blocked, held OR paused AS is_kept, created_at FROM dag
    WHERE namespace = $1 AND state = 'running' AND externals > 0 AND id > $2::uuid ORDER BY id LIMIT $3) AS d
LEFT JOIN LATERAL (
    SELECT x.name AS external, n.* FROM (
        SELECT node_key, name FROM external
        WHERE dag_no = d.no AND declared AND resolved_at IS NULL AND NOT d.is_kept
        ORDER BY node_key, name LIMIT $4) AS x
    CROSS JOIN LATERAL (
        SELECT ext_left, no, key, generation, item_id, created_at,
            up_left + up_ok + up_failed + up_skipped + up_cancelled AS upstreams
        FROM node
        WHERE dag_no = d.no AND key = x.node_key AND state = 'blocked' AND run_on IS NULL AND CASE trigger
            WHEN 'any_succeeded' THEN up_ok > 0 WHEN 'any_failed' THEN up_failed > 0 ELSE up_left = 0 END
        OFFSET 0) AS n
    LIMIT 1) AS w ON true
ORDER BY d.id;

-- name: kept_since(no)
SELECT paused_at, (SELECT started_at FROM reopening WHERE dag_no = $1) AS retried_at FROM dag WHERE no = $1;

-- name: unsent(nos)
-- Which of these the queue is still to be told about.
SELECT w.no FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT FROM outbox WHERE node_no = w.no LIMIT 1) AS o;

-- name: chain_nodes(after_no, last_no, rows_max)
-- How long the succeeded took from release to end, and how long the released are out, in seconds.
SELECT no, state, topic, extract(epoch FROM finished_at - released_at)::float8 AS took_s,
    extract(epoch FROM shard_now() - released_at)::float8 AS out_s
FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $3;
