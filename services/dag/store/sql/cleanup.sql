-- Blocks about cleanup and compensation. All but the last run under the lock of the DAG's row.

-- part: payload_part
-- The payload within an item's JSON text `item`, as it stands there. Postgres reads no text with a NUL, which payloads may
-- hold: it is read with \u00010 in the place of \u0000, and \u00011 in that of \u0001.
CASE WHEN strpos(item, '\u0000') = 0 THEN (item::json -> 'payload')::text ELSE regexp_replace(
    (regexp_replace(item, '(?<!\\)((?:\\\\)*\\u000)([01])', '\11\2', 'g')::json -> 'payload')::text,
    '(?<!\\)((?:\\\\)*\\u000)1([01])', '\1\2', 'g') END

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
-- Compensation that has no turn yet, and when what it compensates ran: in its present generation, or in one that a
-- retry has replaced; no times where nothing is left to be undone.
SELECT c.node_no AS no, n.state,
    CASE WHEN u.stands THEN u.released_at WHEN c.stood THEN c.done_released_at END AS released_at,
    CASE WHEN u.stands THEN u.finished_at WHEN c.stood THEN c.done_finished_at END AS finished_at
FROM (SELECT node_no, of_no, undone_generation, done_released_at, done_finished_at,
          done_generation > undone_generation AS stood
      FROM cleanup WHERE dag_no = $1 AND wave = 0 OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT state FROM node WHERE no = c.node_no OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT released_at, finished_at, state = 'succeeded' AND generation > c.undone_generation AS stands
    FROM node WHERE no = c.of_no OFFSET 0) AS u;

-- name: note_done(nos)
-- These are to begin new generations: what succeeded is noted at what would undo it.
WITH done AS MATERIALIZED (
    SELECT c.tid, n.*, s.payload
    FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM cleanup WHERE of_no = w.no OFFSET 0) AS c
    CROSS JOIN LATERAL (
        SELECT generation, released_at, finished_at, output FROM node WHERE no = w.no AND state = 'succeeded' OFFSET 0) AS n
    CROSS JOIN LATERAL (
        SELECT {payload_part} AS payload FROM node_spec WHERE node_no = w.no OFFSET 0) AS s
    LIMIT 1000000)
UPDATE cleanup SET done_generation = d.generation, done_released_at = d.released_at,
    done_finished_at = d.finished_at, done_payload = d.payload, done_output = d.output
FROM done d WHERE cleanup.ctid = d.tid;

-- name: note_undone(nos)
-- These compensations have succeeded.
WITH undone AS MATERIALIZED (
    SELECT c.tid, u.generation FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, of_no FROM cleanup WHERE dag_no = w.no >> 22 AND node_no = w.no OFFSET 0) AS c
    CROSS JOIN LATERAL (SELECT generation FROM node WHERE no = c.of_no OFFSET 0) AS u
    LIMIT cardinality($1::bigint[]))
UPDATE cleanup SET undone_generation = u.generation
FROM undone u WHERE cleanup.ctid = u.tid;

-- name: plan_again(dag_no, node_nos, undo_again)
-- Those of these nodes that are compensations are to be planned; with `undo_again` whatever they have undone. Which success
-- they had begun to undo is noted: their new generations do not tell, which may end before they run.
WITH again AS MATERIALIZED (
    SELECT c.tid, u.generation, n.ran AND u.stands AS begun FROM unnest($2::bigint[]) AS w(node_no)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, of_no FROM cleanup WHERE dag_no = $1 AND node_no = w.node_no OFFSET 0) AS c
    CROSS JOIN LATERAL (SELECT released_at IS NOT NULL AS ran FROM node WHERE no = w.node_no OFFSET 0) AS n
    CROSS JOIN LATERAL (SELECT generation, state = 'succeeded' AS stands FROM node WHERE no = c.of_no OFFSET 0) AS u
    LIMIT cardinality($2::bigint[]))
UPDATE cleanup SET wave = 0, undone_generation = CASE WHEN $3 THEN 0 ELSE undone_generation END,
    begun_generation = CASE WHEN a.begun THEN a.generation ELSE begun_generation END
FROM again a WHERE cleanup.ctid = a.tid;

-- name: undone_sizes(nos)
-- What each of these compensations undoes, and about how much it is told of that beside the other's inputs: those are
-- known while its success is of its present generation.
SELECT c.node_no AS no, c.of_no, u.own AND u.pass_outputs AS has_inputs,
    2 * octet_length(u.key) + coalesce(octet_length(CASE WHEN u.own THEN u.output ELSE c.done_output END), 0)
        + coalesce(CASE WHEN u.own THEN s.bytes ELSE octet_length(c.done_payload) END, 0) AS bytes
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (
    SELECT node_no, of_no, done_output, done_payload FROM cleanup
    WHERE dag_no = w.no >> 22 AND node_no = w.no OFFSET 0) AS c
CROSS JOIN LATERAL (
    SELECT key, output, pass_outputs, state = 'succeeded' AS own FROM node WHERE no = c.of_no OFFSET 0) AS u
CROSS JOIN LATERAL (SELECT octet_length(item) AS bytes FROM node_spec WHERE node_no = c.of_no OFFSET 0) AS s;

-- name: undone(nos)
-- The output and the payload of what these compensations undo.
SELECT c.node_no AS no, c.of_no, u.key, CASE WHEN u.own THEN u.output ELSE c.done_output END AS output,
    CASE WHEN u.own THEN {payload_part} ELSE c.done_payload END AS payload
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (
    SELECT node_no, of_no, done_output, done_payload FROM cleanup
    WHERE dag_no = w.no >> 22 AND node_no = w.no OFFSET 0) AS c
CROSS JOIN LATERAL (
    SELECT key, output, state = 'succeeded' AS own FROM node WHERE no = c.of_no OFFSET 0) AS u
CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = c.of_no OFFSET 0) AS s;

-- name: set_waves(dag_no, node_nos, waves)
UPDATE cleanup SET wave = w.wave FROM (
    SELECT c.tid, v.wave FROM unnest($2::bigint[], $3::int[]) AS v(node_no, wave)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM cleanup WHERE dag_no = $1 AND node_no = v.node_no OFFSET 0) AS c
    LIMIT cardinality($2::bigint[])) AS w
WHERE cleanup.ctid = w.tid;

-- name: next_wave(dag_no)
-- It is the turn of the next ones to compensate.
UPDATE cleanup SET wave = -1 WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM cleanup WHERE dag_no = $1 AND wave = (
        SELECT wave FROM cleanup WHERE dag_no = $1 AND wave > 0 ORDER BY wave LIMIT 1)));

-- name: take_wave(dag_no, wave, rows_max)
UPDATE cleanup SET wave = NULL WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM cleanup WHERE dag_no = $1 AND wave = $2 ORDER BY node_no LIMIT $3))
RETURNING node_no;

-- name: cleanup_page(dag_no, after_no, rows_max)
SELECT node_no FROM cleanup WHERE dag_no = $1 AND node_no > $2 AND of_no IS NULL ORDER BY node_no LIMIT $3;

-- name: cleanup_numbers(dag_no)
-- All of both kinds, as one array: rows cost a reader far more.
SELECT node_no FROM cleanup WHERE dag_no = $1;

-- name: cleanups_again(dag_no)
-- What runs again with ordinary nodes of a DAG that had ended: all cleanup that no caller has ended (or too late), and
-- what was compensated, now or before the compensation began anew.
SELECT DISTINCT x.no
FROM (SELECT node_no, of_no, begun_generation FROM cleanup WHERE dag_no = $1 OFFSET 0) AS c
CROSS JOIN LATERAL (
    SELECT released_at IS NOT NULL AS ran, by_call AND state IN ('skipped', 'cancelled') AS by_call
    FROM node WHERE no = c.node_no OFFSET 0) AS n
LEFT JOIN LATERAL (
    SELECT generation <= c.begun_generation AS begun FROM node WHERE no = c.of_no OFFSET 0) AS u ON true
CROSS JOIN LATERAL (VALUES (c.node_no, NOT n.by_call), (c.of_no, n.ran OR u.begun)) AS x(no, again)
WHERE x.no IS NOT NULL AND x.again
ORDER BY x.no;

-- name: compensated_keys(nos)
SELECT c.node_no, n.key FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT node_no, of_no FROM cleanup WHERE dag_no = w.no >> 22 AND node_no = w.no OFFSET 0) AS c
CROSS JOIN LATERAL (SELECT key FROM node WHERE no = c.of_no OFFSET 0) AS n;
