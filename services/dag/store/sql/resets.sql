-- Blocks about runs whose code goes on from an earlier event, or with other outputs; all under the lock of the DAG's row.
-- What code is told: no record, but for a step that is written with its end; and not that the run was reset.

-- name: has_reset(dag_no, key, id)
-- Of this run, or, by its noted id, of one that went on as this one.
SELECT true AS found
WHERE EXISTS (SELECT FROM event WHERE dag_no = $1 AND key = $2 AND kind = 'run' AND state = 'reset')
    OR EXISTS (SELECT FROM signal_id WHERE dag_no = $1 AND id = $3);

-- name: note_reset(dag_no, id)
-- Where ids of signals are, which the runs that a run goes on as are given.
INSERT INTO signal_id (dag_no, id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: is_told(dag_no, event)
SELECT true AS found FROM event
WHERE dag_no = $1 AND event = $2 AND void IS NULL
    AND (after IS NULL AND state <> 'reset' OR kind = 'step' AND state <> 'added');

-- name: end_asked(dag_no)
-- The event at which the run's code has ended.
SELECT max(after) AS after FROM event WHERE dag_no = $1 AND kind = 'end' AND void IS NULL;

-- name: asked(dag_no, keys)
-- Records of these, and their ends.
SELECT key, kind, event, generation, state, output, after FROM event
WHERE dag_no = $1 AND key = ANY($2::text[]) AND void IS NULL
    AND kind IN ('item', 'sub', 'child', 'timer', 'step', 'send', 'start')
ORDER BY event;

-- name: count_void(dag_no, event, rows_max)
SELECT count(*)::int AS rows FROM (
    SELECT 1 FROM event WHERE dag_no = $1 AND event >= $2 AND after >= $2 AND void IS NULL LIMIT $3) AS found;

-- name: void_ends(dag_no, events, number)
-- Ends that are replaced. Of a step that was written with its end its record is left, and the end goes to the log's tail.
WITH old AS MATERIALIZED (
    SELECT e.*, (SELECT last_event FROM run WHERE dag_no = $1) + row_number() OVER (ORDER BY e.event) AS place
    FROM event AS e WHERE e.dag_no = $1 AND e.event = ANY($2::bigint[]) AND e.after IS NOT NULL),
kept AS (
    INSERT INTO event (dag_no, event, at, kind, key, generation, state, output, error, void)
    SELECT $1, place, at, kind, key, generation, state, output, error, $3 FROM old),
voided AS (
    UPDATE event SET void = CASE WHEN after IS NULL THEN $3::int END,
        state = CASE WHEN after IS NULL THEN state ELSE 'added' END,
        output = CASE WHEN after IS NULL THEN output END, error = CASE WHEN after IS NULL THEN error END
    WHERE dag_no = $1 AND event = ANY($2::bigint[]))
UPDATE run SET last_event = o.last FROM (SELECT max(place) AS last FROM old HAVING count(*) > 0) AS o WHERE run.dag_no = $1;

-- name: void_from(dag_no, event, number)
-- What was asked for at that event and later, its ends, what it shows, and a request to end that came since; what was
-- asked for.
WITH records AS MATERIALIZED (
    SELECT kind, key FROM event
    WHERE dag_no = $1 AND event >= $2 AND after >= $2 AND void IS NULL
        AND kind IN ('item', 'sub', 'child', 'timer', 'step', 'send', 'start')),
hidden AS (
    DELETE FROM published WHERE dag_no = $1 AND event IN (
        SELECT e.event FROM event AS e
        WHERE e.dag_no = $1 AND e.event >= $2 AND e.after >= $2 AND e.kind = 'publish' AND e.void IS NULL)),
voided AS (
    UPDATE event SET void = $3::int
    WHERE dag_no = $1 AND event >= $2 AND void IS NULL AND (
        after >= $2 OR kind = 'run' AND state = 'cancel_requested'
        OR after IS NULL AND (kind, key) IN (SELECT kind, key FROM records)))
SELECT kind, key FROM records;

-- name: append_replaced(dag_no, kinds, keys, generations, outputs)
WITH appended AS (
    INSERT INTO event (dag_no, event, kind, key, generation, state, output)
    SELECT $1, run.last_event + w.nth, w.kind, w.key, w.generation, 'succeeded', w.output
    FROM unnest($2::text[], $3::text[], $4::int[], $5::text[]) WITH ORDINALITY AS w(kind, key, generation, output, nth)
    CROSS JOIN run WHERE run.dag_no = $1)
UPDATE run SET last_event = last_event + cardinality($3::text[]) WHERE dag_no = $1;

-- name: take_back_any_end(dag_no)
WITH cleared AS (UPDATE dag SET ends_as = NULL WHERE no = $1)
UPDATE run SET state = 'running', output = NULL, error = NULL WHERE dag_no = $1;

-- name: append_reset(dag_no, event, number, key, data, markers, open_steps, deadline_anew)
-- The first that code is told of from that event on says so; with it begins what is to be seen again.
WITH told AS MATERIALIZED (
    SELECT event FROM event WHERE dag_no = $1 AND void IS NULL
        AND (after IS NULL AND state <> 'reset' OR kind = 'step' AND state <> 'added')),
marked AS (
    UPDATE event SET reset = $3::int
    WHERE dag_no = $1 AND event = (SELECT min(event) FROM told WHERE told.event >= $2)),
limited AS (
    UPDATE dag SET deadline_at = shard_now() + make_interval(secs => deadline_s) WHERE no = $1 AND $8::boolean),
appended AS (
    INSERT INTO event (dag_no, event, kind, key, state, data)
    SELECT $1, last_event + 1, 'run', $4, 'reset', $5 FROM run WHERE dag_no = $1)
UPDATE run SET last_event = last_event + 1, last_told = (SELECT max(event) FROM told), resets = $3::int,
    seen = least(seen, (SELECT coalesce(max(event), 0) FROM told WHERE told.event < $2)),
    markers = $6, open_steps = $7::text[], cancel_requested = false, stuck = NULL
WHERE dag_no = $1;
