-- Blocks about cleanup and compensation. All but the last run under the lock of the DAG's row.

-- name: insert_cleanups(dag_no, node_nos, of_nos)
INSERT INTO cleanup (dag_no, node_no, of_no, wave)
SELECT $1, w.node_no, w.of_no, CASE WHEN w.of_no IS NOT NULL THEN 0 END
FROM unnest($2::bigint[], $3::bigint[]) AS w(node_no, of_no);

-- name: set_cleanup(no, cleanups, cleanup_left, cleanup_phase, verdict)
-- Once it cleans up, a DAG has no deadline; while it is reopened (-1) it has.
UPDATE dag SET cleanups = $2, cleanup_left = $3, cleanup_phase = $4, verdict = $5,
    deadline_at = CASE WHEN $4::int <= 0 THEN deadline_at END
WHERE no = $1;

-- name: unplanned(dag_no)
-- Compensation that has no turn yet, and when what it compensates ran.
SELECT c.node_no, n.state, u.state AS of_state, u.released_at, u.finished_at
FROM (SELECT node_no, of_no FROM cleanup WHERE dag_no = $1 AND wave = 0 OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT state FROM node WHERE no = c.node_no OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT state, released_at, finished_at FROM node WHERE no = c.of_no OFFSET 0) AS u;

-- name: set_waves(dag_no, node_nos, waves)
UPDATE cleanup SET wave = w.wave FROM (
    SELECT c.tid, v.wave FROM unnest($2::bigint[], $3::int[]) AS v(node_no, wave)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM cleanup WHERE dag_no = $1 AND node_no = v.node_no OFFSET 0) AS c
    LIMIT cardinality($2::bigint[])) AS w
WHERE cleanup.ctid = w.tid;

-- name: take_wave(dag_no)
-- The next ones to compensate.
UPDATE cleanup SET wave = NULL WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM cleanup WHERE dag_no = $1 AND wave = (
        SELECT wave FROM cleanup WHERE dag_no = $1 AND wave > 0 ORDER BY wave LIMIT 1)))
RETURNING node_no;

-- name: cleanup_page(dag_no, after_no, rows_max)
SELECT node_no FROM cleanup WHERE dag_no = $1 AND node_no > $2 AND of_no IS NULL ORDER BY node_no LIMIT $3;

-- name: cleanups_of(dag_no)
-- All of both kinds; `ran` where one was begun, `by_call` where a caller ended it (and did not come too late).
SELECT c.node_no, c.of_no, n.released_at IS NOT NULL AS ran, n.by_call AND n.state IN ('skipped', 'cancelled') AS by_call
FROM (SELECT node_no, of_no FROM cleanup WHERE dag_no = $1 ORDER BY node_no OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT released_at, by_call, state FROM node WHERE no = c.node_no OFFSET 0) AS n;

-- name: compensated_keys(nos)
SELECT c.node_no, n.key FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT node_no, of_no FROM cleanup WHERE dag_no = w.no >> 22 AND node_no = w.no OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT key FROM node WHERE no = c.of_no OFFSET 0) AS n;
