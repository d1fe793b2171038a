-- Blocks about retries that go in steps. All run under the lock of the DAG's row.

-- name: insert_reopening(dag_no, below, roots, by_call_too, cleanups, queue_shard)
INSERT INTO reopening (dag_no, stage, below, roots, by_call_too, cleanups, queue_shard, after_no)
VALUES ($1, 'named', $2, $3, $4, $5, $6, ($1::bigint << 22) - 1);

-- name: reopening_of(dag_no)
SELECT stage, below, roots, by_call_too, cleanups, queue_shard, after_no, started_at FROM reopening WHERE dag_no = $1;

-- name: advance_reopening(dag_no, stage, after_no)
UPDATE reopening SET stage = $2, after_no = $3 WHERE dag_no = $1;

-- name: keep_cleanups(dag_no, cleanups)
UPDATE reopening SET cleanups = $2 WHERE dag_no = $1;

-- name: drop_reopening(dag_no)
DELETE FROM reopening WHERE dag_no = $1;

-- name: clear_reach(dag_no)
DELETE FROM reach WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22;

-- name: retry_reach(nos, states, rows_max)
-- Everything in one of `states` below these nodes, and they; what a caller skipped or cancelled stays so. With them
-- the blocked nodes below, which are counted anew (`again` is false), each with how many edges come into it. A node
-- is one row of `reach`, and so is each edge that was looked at: at most so many.
WITH RECURSIVE reach(no, up, down, is_blocked) AS (
    SELECT unnest($1::bigint[]), NULL::bigint, NULL::bigint, false
    UNION
    SELECT x.* FROM reach
    CROSS JOIN LATERAL (
        SELECT edge.down, n.state = 'blocked' AS is_blocked,
            n.state = ANY($2::text[]) AND NOT (n.by_call AND n.state IN ('skipped', 'cancelled')) AS again
        FROM edge CROSS JOIN LATERAL (SELECT state, by_call FROM node WHERE no = edge.down OFFSET 0) AS n
        WHERE edge.up = reach.no OFFSET 0) AS e
    CROSS JOIN LATERAL (VALUES (NULL::bigint, reach.no, e.down, e.is_blocked), (e.down, NULL, NULL, false))
        AS x(no, up, down, is_blocked)
    WHERE x.no IS NULL OR e.again),
seen AS MATERIALIZED (SELECT * FROM reach LIMIT $3),
named AS MATERIALIZED (
    SELECT coalesce(no, down) AS no, bool_or(no IS NOT NULL) AS again FROM seen
    WHERE no IS NOT NULL OR is_blocked GROUP BY coalesce(no, down))
SELECT named.no, named.again, n.upstreams, (SELECT count(*) FROM seen)::int AS looked_at
FROM named CROSS JOIN LATERAL (
    SELECT up_left + up_ok + up_failed + up_skipped + up_cancelled AS upstreams
    FROM node WHERE node.no = named.no OFFSET 0) AS n;

-- name: insert_reach(node_nos, after_downs)
INSERT INTO reach (node_no, after_down) SELECT * FROM unnest($1::bigint[], $2::bigint[])
ON CONFLICT (node_no) DO UPDATE SET after_down = excluded.after_down;

-- name: reach_of(dag_no, rows_max)
SELECT node_no, after_down FROM reach
WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22 ORDER BY node_no LIMIT $2;

-- name: reach_below(ups, after_downs, states, rows_max)
-- Breadth first: edges that leave these nodes, each from where the last step stopped, and those that leave what is
-- found below them. A node that is to run again is a row (no), after the row (up, down) of the edge that led to it;
-- edges of one node come together, in order. What is not asked for is not looked at.
WITH RECURSIVE reach(no, after_down, up, down) AS (
    SELECT w.no, w.after_down, NULL::bigint, NULL::bigint
    FROM unnest($1::bigint[], $2::bigint[]) AS w(no, after_down)
    UNION
    SELECT x.* FROM reach
    CROSS JOIN LATERAL (
        SELECT edge.down,
            n.state = ANY($3::text[]) AND NOT (n.by_call AND n.state IN ('skipped', 'cancelled')) AS again
        FROM edge CROSS JOIN LATERAL (SELECT state, by_call FROM node WHERE no = edge.down OFFSET 0) AS n
        WHERE edge.up = reach.no AND edge.down > reach.after_down ORDER BY edge.down OFFSET 0) AS e
    CROSS JOIN LATERAL (VALUES (1, NULL::bigint, NULL::bigint, reach.no, e.down), (2, e.down, -1, NULL, NULL))
        AS y(nth, no, after_down, up, down)
    CROSS JOIN LATERAL (SELECT y.no, y.after_down, y.up, y.down OFFSET 0) AS x
    WHERE y.nth = 1 OR e.again)
SELECT no, up, down FROM reach OFFSET cardinality($1::bigint[]) LIMIT $4;

-- name: delete_reach(node_nos)
DELETE FROM reach WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM unnest($1::bigint[]) AS w(node_no)
    CROSS JOIN LATERAL (SELECT ctid FROM reach WHERE node_no = w.node_no OFFSET 0) AS r));
