-- Blocks about edges and externals. All run under the lock of the DAG's row.

-- name: insert_edges(ups, downs, satisfieds)
INSERT INTO edge (up, down, satisfied)
SELECT w.up, w.down, w.satisfied FROM unnest($1::bigint[], $2::bigint[], $3::boolean[]) AS w(up, down, satisfied);

-- name: existing_edges(ups, downs)
SELECT e.up, e.down FROM unnest($1::bigint[], $2::bigint[]) AS w(up, down)
CROSS JOIN LATERAL (SELECT up, down FROM edge WHERE up = w.up AND down = w.down OFFSET 0) AS e;

-- name: edges_above(nos, rows_max)
-- Edges on the ways that lead to these nodes, the nearest first. A node is one row of `reach`, and so is each edge.
WITH RECURSIVE reach(no, up, down) AS (
    SELECT unnest($1::bigint[]), NULL::bigint, NULL::bigint
    UNION
    SELECT x.* FROM reach
    CROSS JOIN LATERAL (SELECT up FROM edge WHERE down = reach.no OFFSET 0) AS e
    CROSS JOIN LATERAL (VALUES (NULL::bigint, e.up, reach.no), (e.up, NULL, NULL)) AS x(no, up, down))
SELECT up, down FROM reach WHERE down IS NOT NULL LIMIT $2;

-- name: edges_page(after_up, after_down, last_up, rows_max)
SELECT up, down FROM edge WHERE (up, down) > ($1::bigint, $2::bigint) AND up <= $3 ORDER BY up, down LIMIT $4;

-- name: edge_columns(after_up, after_down, last_up, rows_max)
-- The same page as two columns of numbers within the DAG, four bytes each: rows cost a reader far more.
SELECT string_agg(int4send((up & 4194303)::int), ''::bytea ORDER BY up, down) AS ups,
    string_agg(int4send((down & 4194303)::int), ''::bytea ORDER BY up, down) AS downs
FROM (SELECT up, down FROM edge WHERE (up, down) > ($1::bigint, $2::bigint) AND up <= $3 ORDER BY up, down LIMIT $4)
    AS page;

-- name: out_degrees(ups, degree_max)
-- How many edges leave each node, counted no further than the limit.
SELECT w.up, (SELECT count(*) FROM (
    SELECT 1 FROM edge WHERE edge.up = w.up LIMIT $2) AS found)::int AS degree
FROM unnest($1::bigint[]) AS w(up);

-- name: flip_edges(ups, states, edges_max)
-- Edges of nodes that have just ended: each is flipped once and counted once at its downstream.
WITH picked AS MATERIALIZED (
    SELECT e.tid, w.state
    FROM unnest($1::bigint[], $2::text[]) AS w(up, state)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM edge WHERE edge.up = w.up AND NOT satisfied OFFSET 0) AS e
    LIMIT $3),
flipped AS (
    UPDATE edge SET satisfied = true FROM picked p
    WHERE edge.ctid = p.tid
    RETURNING edge.down, p.state),
counted AS MATERIALIZED (
    SELECT down, count(*)::int AS edges,
        (count(*) FILTER (WHERE state = 'succeeded'))::int AS ok,
        (count(*) FILTER (WHERE state = 'failed'))::int AS failed,
        (count(*) FILTER (WHERE state = 'skipped'))::int AS skipped,
        (count(*) FILTER (WHERE state = 'cancelled'))::int AS cancelled
    FROM flipped GROUP BY down),
children AS MATERIALIZED (
    SELECT n.tid, c.* FROM counted c
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = c.down OFFSET 0) AS n
    LIMIT $3)
UPDATE node SET up_left = up_left - c.edges, up_ok = up_ok + c.ok, up_failed = up_failed + c.failed,
    up_skipped = up_skipped + c.skipped, up_cancelled = up_cancelled + c.cancelled
FROM children c WHERE node.ctid = c.tid
RETURNING {node_columns:node}, c.edges;

-- name: skipped_below(nos, rows_max)
-- Blocked nodes to which a way leads from these that are skipped, over nodes that need all their upstreams: one
-- that is skipped is enough. A node is one row of `reach`, and so is each edge that was looked at: at most so many.
WITH RECURSIVE reach(no, up, down) AS (
    SELECT unnest($1::bigint[]), NULL::bigint, NULL::bigint
    UNION
    SELECT x.* FROM reach
    CROSS JOIN LATERAL (
        SELECT edge.down, n.is_skipped
        FROM edge CROSS JOIN LATERAL (
            SELECT state = 'blocked' AND trigger = 'all_succeeded' AND NOT ext_failed AND run_on IS NULL AS is_skipped
            FROM node WHERE no = edge.down OFFSET 0) AS n
        WHERE edge.up = reach.no OFFSET 0) AS e
    CROSS JOIN LATERAL (VALUES (NULL::bigint, reach.no, e.down), (e.down, NULL, NULL)) AS x(no, up, down)
    WHERE x.no IS NULL OR e.is_skipped)
SELECT n.* FROM (SELECT no FROM reach OFFSET cardinality($1::bigint[]) LIMIT $2) AS seen
CROSS JOIN LATERAL (
    SELECT {node_columns}
    FROM node WHERE no = seen.no OFFSET 0) AS n;

-- name: flip_after(up, state, after_down, edges_max)
-- The same for one node with many edges, from where the last step stopped.
WITH picked AS MATERIALIZED (
    SELECT ctid AS tid FROM edge WHERE up = $1 AND down > $3 AND NOT satisfied ORDER BY down LIMIT $4),
flipped AS (
    UPDATE edge SET satisfied = true FROM picked p WHERE edge.ctid = p.tid
    RETURNING edge.down),
children AS MATERIALIZED (
    SELECT n.tid FROM flipped f
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = f.down OFFSET 0) AS n
    LIMIT $4)
UPDATE node SET up_left = up_left - 1,
    up_ok = up_ok + CASE WHEN $2 = 'succeeded' THEN 1 ELSE 0 END,
    up_failed = up_failed + CASE WHEN $2 = 'failed' THEN 1 ELSE 0 END,
    up_skipped = up_skipped + CASE WHEN $2 = 'skipped' THEN 1 ELSE 0 END,
    up_cancelled = up_cancelled + CASE WHEN $2 = 'cancelled' THEN 1 ELSE 0 END
FROM children c WHERE node.ctid = c.tid
RETURNING {node_columns:node};

-- name: recount_edges(nos)
-- Every edge into these nodes, by how its upstream stands now; the nodes' counts anew.
WITH stand AS MATERIALIZED (
    SELECT e.tid, e.down, e.satisfied, u.state, u.state NOT IN ('blocked', 'released') AS over
    FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT ctid AS tid, up, down, satisfied FROM edge WHERE down = w.no OFFSET 0) AS e
    CROSS JOIN LATERAL (SELECT state FROM node WHERE no = e.up OFFSET 0) AS u),
flagged AS (
    UPDATE edge SET satisfied = s.over
    FROM (SELECT * FROM stand WHERE over <> satisfied LIMIT (SELECT count(*) FROM stand)) AS s
    WHERE edge.ctid = s.tid),
counted AS MATERIALIZED (
    SELECT down, (count(*) FILTER (WHERE NOT over))::int AS unfinished,
        (count(*) FILTER (WHERE state = 'succeeded'))::int AS ok,
        (count(*) FILTER (WHERE state = 'failed'))::int AS failed,
        (count(*) FILTER (WHERE state = 'skipped'))::int AS skipped,
        (count(*) FILTER (WHERE state = 'cancelled'))::int AS cancelled
    FROM stand GROUP BY down),
found AS MATERIALIZED (
    SELECT n.tid, c.* FROM counted c
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = c.down OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET up_left = c.unfinished, up_ok = c.ok, up_failed = c.failed, up_skipped = c.skipped,
    up_cancelled = c.cancelled
FROM found c WHERE node.ctid = c.tid;

-- name: open_children(nos)
-- Nodes below these that can still be decided anew.
SELECT DISTINCT e.down AS no
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT down FROM edge WHERE up = w.no OFFSET 0) AS e
CROSS JOIN LATERAL (SELECT FROM node WHERE no = e.down AND state = 'blocked' OFFSET 0) AS c;

-- name: declare_externals(dag_no, node_keys, names, deadlines_s)
-- What was resolved before it was declared is found here, and keeps no deadline.
INSERT INTO external (dag_no, node_key, name, declared, deadline_s, deadline_at)
SELECT $1, w.node_key, w.name, true, w.deadline_s, shard_now() + make_interval(secs => w.deadline_s)
FROM unnest($2::text[], $3::text[], $4::float8[]) AS w(node_key, name, deadline_s)
ON CONFLICT (dag_no, node_key, name) DO UPDATE SET declared = true
RETURNING node_key, name, resolved_at IS NOT NULL AS resolved, failed, (xmax = 0) AS made;

-- name: find_externals(dag_no, node_keys, names)
SELECT x.* FROM unnest($2::text[], $3::text[]) AS w(node_key, name)
CROSS JOIN LATERAL (
    SELECT node_key, name, failed, declared FROM external
    WHERE dag_no = $1 AND node_key = w.node_key AND name = w.name OFFSET 0) AS x;

-- name: overdue_externals(rows_max)
SELECT dag_no, node_key, name FROM external
WHERE deadline_at IS NOT NULL AND resolved_at IS NULL AND deadline_at <= (SELECT shard_now())
ORDER BY deadline_at LIMIT $1;

-- name: expire_externals(dag_no, node_keys, names, waits)
-- Deadlines that have passed: resolved as failed, or, where nobody waits any more, forgotten until a retry.
-- What is overdue is asked outside the lookup: inside, it would let the planner walk the index of all deadlines.
WITH found AS MATERIALIZED (
    SELECT x.tid, w.waits FROM unnest($2::text[], $3::text[], $4::boolean[]) AS w(node_key, name, waits)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, resolved_at, deadline_at FROM external
        WHERE dag_no = $1 AND node_key = w.node_key AND name = w.name OFFSET 0) AS x
    WHERE x.resolved_at IS NULL AND x.deadline_at <= shard_now()
    LIMIT cardinality($2::text[]))
UPDATE external SET resolved_at = CASE WHEN f.waits THEN shard_now() END, failed = f.waits,
    reason = CASE WHEN f.waits THEN 'deadline' END, deadline_at = CASE WHEN f.waits THEN deadline_at END
FROM found f WHERE external.ctid = f.tid
RETURNING external.node_key, external.name;

-- name: resolve_externals(dag_no, node_keys, names, datas, faileds)
-- Only what is not resolved yet is returned.
INSERT INTO external AS x (dag_no, node_key, name, declared, resolved_at, failed, data)
SELECT $1, w.node_key, w.name, false, shard_now(), w.failed, w.data
FROM unnest($2::text[], $3::text[], $4::text[], $5::boolean[]) AS w(node_key, name, data, failed)
ON CONFLICT (dag_no, node_key, name) DO UPDATE
SET resolved_at = excluded.resolved_at, failed = excluded.failed, data = excluded.data
WHERE x.resolved_at IS NULL
RETURNING x.node_key, x.name, x.declared, x.failed;
