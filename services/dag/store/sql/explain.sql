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
