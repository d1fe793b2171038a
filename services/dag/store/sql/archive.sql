-- Ended DAGs: moved out of the hot tables, read where they are, moved back, dropped. Every move is bounded and takes
-- rows out of one table and into the other in one statement, so that a reader of both finds each once.

-- name: both_places()
-- What stands before a reading statement that is to find nodes wherever they are: the names then mean both tables.
WITH node AS NOT MATERIALIZED (SELECT * FROM node UNION ALL SELECT * FROM kept_node),
node_spec AS NOT MATERIALIZED (SELECT * FROM node_spec UNION ALL SELECT * FROM kept_node_spec),
edge AS NOT MATERIALIZED (SELECT * FROM edge UNION ALL SELECT * FROM kept_edge),
external AS NOT MATERIALIZED (SELECT * FROM external UNION ALL SELECT * FROM kept_external),
change AS NOT MATERIALIZED (SELECT * FROM change UNION ALL SELECT * FROM kept_change)
SELECT true AS found;

-- name: pick_ended(grace_s, dags_max)
-- The next DAGs in the order of their ends. `grace_s` is longer than a transaction may take, so none ends behind the mark.
WITH mark AS MATERIALIZED (SELECT finished_at, id FROM retention_mark FOR UPDATE),
found AS MATERIALIZED (
    SELECT d.* FROM mark CROSS JOIN LATERAL (
        SELECT no, id, namespace, finished_at FROM dag
        WHERE finished_at IS NOT NULL AND (finished_at, id) > (mark.finished_at, mark.id)
            AND finished_at <= (SELECT shard_now()) - make_interval(secs => $1::float8)
        ORDER BY finished_at, id LIMIT $2) AS d),
noted AS (
    INSERT INTO kept (dag_no, namespace, finished_at, phase, due_at)
    SELECT no, namespace, finished_at, 'due', shard_now() FROM found
    ON CONFLICT (dag_no) DO UPDATE SET finished_at = excluded.finished_at, due_at = excluded.due_at
    WHERE kept.phase = 'due'),
last AS MATERIALIZED (SELECT finished_at, id FROM found ORDER BY finished_at DESC, id DESC LIMIT 1),
moved AS (UPDATE retention_mark SET finished_at = last.finished_at, id = last.id FROM last)
SELECT count(*)::int AS dags FROM found;

-- name: kept_due(dags_max)
SELECT dag_no, phase FROM kept WHERE phase <> 'kept' AND due_at <= (SELECT shard_now()) ORDER BY due_at LIMIT $1;

-- name: kept_of(dag_nos)
SELECT k.* FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
    SELECT dag_no, phase, finished_at, due_at <= shard_now() AS due FROM kept WHERE dag_no = w.dag_no OFFSET 0) AS k;

-- name: busy_dags(dag_nos)
-- Which of these have something left to be done. Ranges all of them, so that each is one look into an index.
SELECT w.dag_no FROM unnest($1::bigint[]) AS w(dag_no)
WHERE EXISTS (SELECT FROM outbox WHERE node_no >= w.dag_no << 22 AND node_no < (w.dag_no + 1) << 22)
    OR EXISTS (SELECT FROM spread WHERE node_no >= w.dag_no << 22 AND node_no < (w.dag_no + 1) << 22)
    OR EXISTS (SELECT FROM adding WHERE first_no >= w.dag_no << 22 AND first_no < (w.dag_no + 1) << 22)
    OR EXISTS (SELECT FROM scan WHERE scan.dag_no >= w.dag_no AND scan.dag_no <= w.dag_no);

-- name: set_phase(dag_nos, phase, due_in_s)
UPDATE kept SET phase = $2, due_at = shard_now() + make_interval(secs => $3::float8)
WHERE dag_no = ANY($1::bigint[]);

-- name: forget_kept(dag_nos)
DELETE FROM kept WHERE dag_no = ANY($1::bigint[]);

-- name: keep_edges(dag_nos, rows_max)
WITH taken AS (
    DELETE FROM edge WHERE ctid = ANY(ARRAY(
        SELECT e.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM edge WHERE up >= w.dag_no << 22 AND up < (w.dag_no + 1) << 22
            ORDER BY up, down LIMIT $2) AS e
        LIMIT $2)) RETURNING *),
put AS (INSERT INTO kept_edge SELECT * FROM taken)
SELECT count(*)::int AS rows, count(*)::int AS found FROM taken;

-- name: keep_nodes(dag_nos, rows_max, bytes_max)
-- As many as come before they take so many bytes together, and one.
WITH found AS (
    SELECT n.* FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
        SELECT ctid AS tid, no, coalesce(octet_length(output), 0) AS bytes
        FROM node WHERE no >= w.dag_no << 22 AND no < (w.dag_no + 1) << 22
        ORDER BY no LIMIT $2) AS n
    LIMIT $2),
sized AS (
    SELECT f.tid, n.bytes, sum(n.bytes) OVER (ORDER BY f.no) AS total
    FROM found f LEFT JOIN LATERAL (
        SELECT octet_length(item) AS bytes FROM node_spec WHERE node_no = f.no OFFSET 0) AS s ON true
    CROSS JOIN LATERAL (SELECT f.bytes + coalesce(s.bytes, 0) AS bytes) AS n),
taken AS (
    DELETE FROM node WHERE ctid = ANY(ARRAY(SELECT tid FROM sized WHERE total - bytes < $3)) RETURNING *),
put AS (INSERT INTO kept_node SELECT * FROM taken),
specs AS (
    DELETE FROM node_spec WHERE ctid = ANY(ARRAY(
        SELECT s.tid FROM taken CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM node_spec WHERE node_no = taken.no OFFSET 0) AS s)) RETURNING *),
put_specs AS (INSERT INTO kept_node_spec SELECT * FROM specs)
SELECT (SELECT count(*) FROM taken)::int AS rows, (SELECT count(*) FROM found)::int AS found;

-- name: keep_externals(dag_nos, rows_max, bytes_max)
WITH found AS (
    SELECT x.* FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
        SELECT ctid AS tid, coalesce(octet_length(data), 0) AS bytes
        FROM external WHERE dag_no = w.dag_no ORDER BY node_key, name LIMIT $2) AS x
    LIMIT $2),
sized AS (SELECT tid, bytes, sum(bytes) OVER (ORDER BY tid) AS total FROM found),
taken AS (
    DELETE FROM external WHERE ctid = ANY(ARRAY(SELECT tid FROM sized WHERE total - bytes < $3)) RETURNING *),
put AS (INSERT INTO kept_external SELECT * FROM taken)
SELECT (SELECT count(*) FROM taken)::int AS rows, (SELECT count(*) FROM found)::int AS found;

-- name: keep_changes(dag_nos, rows_max)
WITH taken AS (
    DELETE FROM change WHERE ctid = ANY(ARRAY(
        SELECT c.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM change WHERE dag_no = w.dag_no ORDER BY last_event LIMIT $2) AS c
        LIMIT $2)) RETURNING *),
put AS (INSERT INTO kept_change SELECT * FROM taken)
SELECT count(*)::int AS rows, count(*)::int AS found FROM taken;

-- name: unarchive_edges(dag_no, rows_max)
WITH taken AS (
    DELETE FROM kept_edge WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM kept_edge WHERE up >= $1::bigint << 22 AND up < ($1::bigint + 1) << 22
        ORDER BY up, down LIMIT $2)) RETURNING *),
put AS (INSERT INTO edge SELECT * FROM taken)
SELECT count(*)::int AS rows, count(*)::int AS found FROM taken;

-- name: unarchive_nodes(dag_no, rows_max, bytes_max)
WITH found AS (
    SELECT ctid AS tid, no, coalesce(octet_length(output), 0) AS bytes
    FROM kept_node WHERE no >= $1::bigint << 22 AND no < ($1::bigint + 1) << 22 ORDER BY no LIMIT $2),
sized AS (
    SELECT f.tid, n.bytes, sum(n.bytes) OVER (ORDER BY f.no) AS total
    FROM found f LEFT JOIN LATERAL (
        SELECT octet_length(item) AS bytes FROM kept_node_spec WHERE node_no = f.no OFFSET 0) AS s ON true
    CROSS JOIN LATERAL (SELECT f.bytes + coalesce(s.bytes, 0) AS bytes) AS n),
taken AS (
    DELETE FROM kept_node WHERE ctid = ANY(ARRAY(SELECT tid FROM sized WHERE total - bytes < $3)) RETURNING *),
put AS (INSERT INTO node SELECT * FROM taken),
specs AS (
    DELETE FROM kept_node_spec WHERE ctid = ANY(ARRAY(
        SELECT s.tid FROM taken CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_node_spec WHERE node_no = taken.no OFFSET 0) AS s)) RETURNING *),
put_specs AS (INSERT INTO node_spec SELECT * FROM specs)
SELECT (SELECT count(*) FROM taken)::int AS rows, (SELECT count(*) FROM found)::int AS found;

-- name: unarchive_externals(dag_no, rows_max, bytes_max)
WITH found AS (
    SELECT ctid AS tid, coalesce(octet_length(data), 0) AS bytes
    FROM kept_external WHERE dag_no = $1 ORDER BY node_key, name LIMIT $2),
sized AS (SELECT tid, bytes, sum(bytes) OVER (ORDER BY tid) AS total FROM found),
taken AS (
    DELETE FROM kept_external WHERE ctid = ANY(ARRAY(SELECT tid FROM sized WHERE total - bytes < $3)) RETURNING *),
put AS (INSERT INTO external SELECT * FROM taken)
SELECT (SELECT count(*) FROM taken)::int AS rows, (SELECT count(*) FROM found)::int AS found;

-- name: unarchive_changes(dag_no, rows_max)
WITH taken AS (
    DELETE FROM kept_change WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM kept_change WHERE dag_no = $1 ORDER BY last_event LIMIT $2)) RETURNING *),
put AS (INSERT INTO change SELECT * FROM taken)
SELECT count(*)::int AS rows, count(*)::int AS found FROM taken;

-- name: old_kept(after_at, after_no, retention_s, exported_only, dags_max)
-- DAGs whose time is over, in the order of their ends; `droppable` where nobody waits to export them.
SELECT k.dag_no, k.finished_at, NOT $4::boolean OR coalesce(k.finished_at < m.exported_until, false) AS droppable
FROM (
    SELECT dag_no, namespace, finished_at FROM kept
    WHERE phase = 'kept' AND (finished_at, dag_no) > ($1::timestamptz, $2::bigint)
        AND finished_at <= (SELECT shard_now()) - make_interval(secs => $3::float8)
    ORDER BY finished_at, dag_no LIMIT $5) AS k
LEFT JOIN LATERAL (SELECT exported_until FROM export_mark WHERE namespace = k.namespace OFFSET 0) AS m ON true;

-- name: drop_dags(nos)
-- The rows that make DAGs known, and their share of the totals.
WITH gone AS (
    DELETE FROM dag WHERE ctid = ANY(ARRAY(
        SELECT d.tid FROM unnest($1::bigint[]) AS w(no)
        CROSS JOIN LATERAL (SELECT ctid AS tid FROM dag WHERE no = w.no OFFSET 0) AS d)) RETURNING *)
INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled)
SELECT state, -count(*), -sum(succeeded), -sum(failed), -sum(skipped), -sum(cancelled) FROM gone GROUP BY state;

-- name: drop_rows(dag_nos, rows_max)
-- A bounded part of what dropped DAGs had.
WITH edges AS (
    DELETE FROM kept_edge WHERE ctid = ANY(ARRAY(
        SELECT e.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_edge WHERE up >= w.dag_no << 22 AND up < (w.dag_no + 1) << 22
            ORDER BY up, down LIMIT $2) AS e
        LIMIT $2)) RETURNING 1),
nodes AS (
    DELETE FROM kept_node WHERE ctid = ANY(ARRAY(
        SELECT n.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_node WHERE no >= w.dag_no << 22 AND no < (w.dag_no + 1) << 22
            ORDER BY no LIMIT $2) AS n
        LIMIT $2)) RETURNING 1),
specs AS (
    DELETE FROM kept_node_spec WHERE ctid = ANY(ARRAY(
        SELECT s.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_node_spec WHERE node_no >= w.dag_no << 22 AND node_no < (w.dag_no + 1) << 22
            ORDER BY node_no LIMIT $2) AS s
        LIMIT $2)) RETURNING 1),
externals AS (
    DELETE FROM kept_external WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_external WHERE dag_no = w.dag_no ORDER BY node_key, name LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
changes AS (
    DELETE FROM kept_change WHERE ctid = ANY(ARRAY(
        SELECT c.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM kept_change WHERE dag_no = w.dag_no ORDER BY last_event LIMIT $2) AS c
        LIMIT $2)) RETURNING 1),
expansions AS (
    DELETE FROM expansion WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM expansion WHERE node_no >= w.dag_no << 22 AND node_no < (w.dag_no + 1) << 22
            ORDER BY node_no, child_no LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
cleanups AS (
    DELETE FROM cleanup WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM cleanup WHERE dag_no = w.dag_no ORDER BY node_no LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
shared AS (
    DELETE FROM dag_value WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM dag_value WHERE dag_no = w.dag_no ORDER BY key LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
use AS (
    DELETE FROM dag_value_use WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no)
        CROSS JOIN LATERAL (SELECT ctid AS tid FROM dag_value_use WHERE dag_no = w.dag_no OFFSET 0) AS x))),
events AS (
    DELETE FROM event WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM event WHERE dag_no = w.dag_no ORDER BY event LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
signal_ids AS (
    DELETE FROM signal_id WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM signal_id WHERE dag_no = w.dag_no ORDER BY id LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
signal_counts AS (
    DELETE FROM signal_count WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM signal_count WHERE dag_no = w.dag_no ORDER BY name LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
shown AS (
    DELETE FROM published WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM published WHERE dag_no = w.dag_no ORDER BY key LIMIT $2) AS x
        LIMIT $2)) RETURNING 1),
runs AS (
    DELETE FROM run WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM unnest($1::bigint[]) AS w(dag_no)
        CROSS JOIN LATERAL (SELECT ctid AS tid FROM run WHERE dag_no = w.dag_no OFFSET 0) AS x))
    RETURNING namespace, workflow_id, dag_id),
workflows AS (
    DELETE FROM workflow WHERE ctid = ANY(ARRAY(
        SELECT x.tid FROM runs CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM workflow
            WHERE namespace = runs.namespace AND id = runs.workflow_id AND dag_id = runs.dag_id OFFSET 0) AS x))),
late AS (
    DELETE FROM change WHERE ctid = ANY(ARRAY(
        SELECT c.tid FROM unnest($1::bigint[]) AS w(dag_no) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM change WHERE dag_no = w.dag_no ORDER BY last_event LIMIT $2) AS c
        LIMIT $2)) RETURNING 1)
SELECT greatest((SELECT count(*) FROM edges), (SELECT count(*) FROM nodes), (SELECT count(*) FROM specs),
    (SELECT count(*) FROM externals), (SELECT count(*) FROM changes), (SELECT count(*) FROM expansions), (SELECT count(*) FROM cleanups),
    (SELECT count(*) FROM shared), (SELECT count(*) FROM events), (SELECT count(*) FROM signal_ids),
    (SELECT count(*) FROM signal_counts), (SELECT count(*) FROM shown), (SELECT count(*) FROM late))::int AS rows;

-- name: ended_dags(since, after_at, after_id, lag_s, scan_max)
-- Ends in their order, of all namespaces: a page looks at no more than `scan_max`. What is younger than `lag_s` may
-- still be joined by an earlier end whose transaction is not over.
SELECT {dag_columns}
FROM dag WHERE finished_at IS NOT NULL AND finished_at >= $1 AND (finished_at, id) > ($2::timestamptz, $3::uuid)
    AND finished_at < (SELECT shard_now()) - make_interval(secs => $4::float8)
ORDER BY finished_at, id LIMIT $5;

-- name: specs_of(nos, bytes_max)
-- As many as come before they take so many bytes together, and one.
SELECT no, item FROM (
    SELECT w.no, s.item, sum(octet_length(s.item)) OVER (ORDER BY w.no) AS bytes
    FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = w.no OFFSET 0) AS s) AS sized
WHERE bytes - octet_length(item) < $2
ORDER BY no;

-- name: set_export_mark(namespace, until)
-- It only moves forward.
INSERT INTO export_mark (namespace, exported_until) VALUES ($1, $2)
ON CONFLICT (namespace) DO UPDATE SET exported_until = greatest(export_mark.exported_until, excluded.exported_until)
RETURNING exported_until;

-- name: export_mark(namespace)
SELECT exported_until FROM export_mark WHERE namespace = $1;
