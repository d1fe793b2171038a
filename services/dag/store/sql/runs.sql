-- Blocks about runs of workflows. All that writes runs under the lock of the DAG's row; the row in `workflow` is taken
-- before it, or after it, and nobody who holds that one waits for a DAG's.

-- columns: run_columns
dag_no, dag_id::text, namespace, workflow_id, type, version, priority, state, secret_hash, turn, turn_digest, seen,
last_event, last_told, open_steps, signals, received, received_total, markers, cancel_requested, stuck, stuck_attempts,
stuck_since, output, error, continued_as::text, resets

-- name: take_id(namespace, id, dag_id)
-- No row where the id has a run already.
INSERT INTO workflow (namespace, id, dag_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING true AS taken;

-- name: lock_id(namespace, id)
SELECT dag_id::text FROM workflow WHERE namespace = $1 AND id = $2 FOR UPDATE;

-- name: started_run(dag_id)
SELECT r.*, d.parent_dag, d.parent_node, d.parent_generation
FROM (SELECT no, parent_dag::text, parent_node, parent_generation FROM dag WHERE id = $1 OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT type, state, input FROM run WHERE dag_no = d.no OFFSET 0) AS r;

-- name: is_dag(dag_id)
SELECT true AS found FROM dag WHERE id = $1;

-- name: dag_of_id(namespace, id)
SELECT dag_id::text FROM workflow WHERE namespace = $1 AND id = $2;

-- name: point_id(namespace, id, dag_id)
UPDATE workflow SET dag_id = $3 WHERE namespace = $1 AND id = $2;

-- name: was_started_by(dag_id, request)
-- Whether the run, or lately one that went on as it, was begun by this request.
SELECT true AS found FROM (SELECT no FROM dag WHERE id = $1 OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT 1 FROM signal_id WHERE dag_no = d.no AND id = $2 OFFSET 0) AS s;

-- name: begin_run(dag_no, dag_id, namespace, workflow_id, type, version, input, priority, secret_hash, data, request)
-- What it is begun by is noted where ids of signals are, which the runs that it goes on as are given.
WITH marked AS (UPDATE dag SET workflow = $5 WHERE no = $1),
noted AS (INSERT INTO signal_id (dag_no, id) SELECT $1, $11::text WHERE $11::text IS NOT NULL),
told AS (INSERT INTO event (dag_no, event, kind, key, state, data) VALUES ($1, 1, 'run', '', 'started', $10))
INSERT INTO run (dag_no, dag_id, namespace, workflow_id, type, version, input, priority, secret_hash, last_event,
    last_told)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, 1);

-- name: run_of(dag_no)
SELECT {run_columns} FROM run WHERE dag_no = $1;

-- name: run_of_dag(dag_id, namespace)
SELECT r.* FROM (SELECT no FROM dag WHERE id = $1 AND namespace = $2 OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT {run_columns} FROM run WHERE dag_no = d.no OFFSET 0) AS r;

-- name: shown_runs(dag_ids, namespace)
SELECT r.*, coalesce(n.state = 'blocked', false) AS is_parked, d.parent_dag::text, d.paused, d.created_at, d.finished_at,
    ARRAY(SELECT key FROM published WHERE dag_no = r.dag_no ORDER BY key) AS published_keys,
    ARRAY(SELECT value FROM published WHERE dag_no = r.dag_no ORDER BY key) AS published_values
FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (SELECT no, parent_dag, paused, created_at, finished_at FROM dag WHERE id = w.id AND namespace = $2 OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT {run_columns} FROM run WHERE dag_no = d.no OFFSET 0) AS r
LEFT JOIN LATERAL (SELECT state FROM node WHERE no = d.no << 22 OFFSET 0) AS n ON true;

-- name: decider_of(dag_no)
SELECT item_id::text, state, generation FROM node WHERE no = $1::bigint << 22;

-- name: run_for_turn(dag_no, keys)
-- With its decider, and what of these it has asked for already, as nodes or as steps. A run that is over may have no
-- decider: nodes of ended DAGs are moved away.
SELECT r.*, coalesce(n.item_id, '') AS item_id, coalesce(n.state, 'moved') AS decider_state,
    coalesce(n.generation, 0) AS generation, ARRAY(
    SELECT w.key FROM unnest($2::text[]) AS w(key)
    WHERE coalesce(
        (SELECT true FROM node WHERE dag_no = $1 AND node.key = w.key),
        (SELECT true FROM event
        WHERE dag_no = $1 AND event.key = w.key AND after IS NOT NULL AND kind = 'step' LIMIT 1))
    ) AS known
FROM (SELECT {run_columns} FROM run WHERE dag_no = $1 OFFSET 0) AS r
LEFT JOIN LATERAL (
    SELECT item_id::text, state, generation FROM node WHERE no = $1::bigint << 22 OFFSET 0) AS n ON true;

-- name: deciders(dag_nos)
SELECT n.*, r.behind FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (
    SELECT {node_columns} FROM node WHERE no = w.no << 22 AND state IN ('blocked', 'released') OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT last_told > seen AS behind FROM run WHERE dag_no = w.no OFFSET 0) AS r;

-- name: write_turn(dag_no, first_event, kinds, keys, states, outputs, errors, datas, afters, last_event, last_told, turn, digest, seen, open_steps, received, received_total, markers, made_by, state, output, error, published_keys, published_values, published_events)
-- All of a turn but the nodes that it asks for.
WITH appended AS (
    INSERT INTO event (dag_no, event, kind, key, state, output, error, data, after)
    SELECT $1, $2::bigint + w.nth - 1, w.kind, w.key, w.state, w.output, w.error, w.data, w.after
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[])
        WITH ORDINALITY AS w(kind, key, state, output, error, data, after, nth)),
shown AS (
    INSERT INTO published (dag_no, key, value, event)
    SELECT $1, w.key, w.value, w.event FROM unnest($23::text[], $24::text[], $25::bigint[]) AS w(key, value, event)
    ON CONFLICT (dag_no, key) DO UPDATE SET value = excluded.value, event = excluded.event)
UPDATE run SET last_event = $10, last_told = $11, turn = $12, turn_digest = $13, seen = $14, open_steps = $15,
    received = $16, received_total = $17, markers = $18, made_by = $19, state = $20, output = $21, error = $22,
    stuck = NULL, stuck_attempts = 0, stuck_since = NULL
WHERE dag_no = $1;

-- name: stick(dag_no, turn, digest, stuck)
UPDATE run SET turn = $2, turn_digest = $3, stuck = $4, stuck_attempts = stuck_attempts + 1,
    stuck_since = coalesce(stuck_since, shard_now())
WHERE dag_no = $1
RETURNING stuck_attempts;

-- name: renew_decider(dag_no, state, item_id, secret_hash, topic, item)
-- The decider's next generation, with an item of its own, which only its secret lets go on with the run.
WITH hashed AS (UPDATE run SET secret_hash = $4 WHERE dag_no = $1),
spec AS (UPDATE node_spec SET item = $6 WHERE node_no = $1::bigint << 22)
UPDATE node SET state = $2, generation = generation + 1, item_id = $3, topic = $5, enqueued = false, attempts = 0,
    released_at = CASE WHEN $2 = 'released' THEN shard_now() END, started_at = NULL, finished_at = NULL,
    worker = NULL, output = NULL, error = NULL
WHERE no = $1::bigint << 22
RETURNING generation;

-- name: append_ends(node_nos)
-- Ends of nodes of runs that go on, as this transaction has written them, in their order. Of what a reset has made void
-- code is not told.
WITH ended AS MATERIALIZED (
    SELECT n.*, r.void, r.last_event + row_number() OVER (PARTITION BY n.dag_no ORDER BY w.nth) AS event
    FROM unnest($1::bigint[]) WITH ORDINALITY AS w(no, nth)
    CROSS JOIN LATERAL (
        SELECT dag_no, key, generation, state, output, error, CASE WHEN timer THEN 'timer' WHEN NOT sub THEN 'item'
            WHEN key LIKE 'child:%' THEN 'child' WHEN key LIKE 'start:%' THEN 'start'
            WHEN key LIKE 'send:%' THEN 'send' ELSE 'sub' END AS kind
        FROM node WHERE no = w.no OFFSET 0) AS n
    CROSS JOIN LATERAL (
        SELECT last_event, CASE WHEN resets > 0 THEN (
            SELECT max(e.void) FROM event AS e
            WHERE e.dag_no = n.dag_no AND e.key = n.key AND e.kind = n.kind AND e.void IS NOT NULL
                AND e.after IS NOT NULL) END AS void
        FROM (SELECT last_event, state, resets FROM run WHERE dag_no = n.dag_no OFFSET 0) AS run
        WHERE state = 'running') AS r),
appended AS (
    INSERT INTO event (dag_no, event, kind, key, generation, state, output, error, void)
    SELECT dag_no, event, kind, key, generation, state, output,
        CASE WHEN state <> 'succeeded' THEN coalesce(error, state) END, void
    FROM ended)
UPDATE run SET (last_event, last_told) = (
    SELECT max(event), coalesce(max(event) FILTER (WHERE void IS NULL), run.last_told)
    FROM ended WHERE ended.dag_no = run.dag_no)
WHERE dag_no = ANY (ARRAY(SELECT dag_no FROM ended));

-- name: request_cancel(dag_no, data, grace_s)
-- Code is told; when the time for cleaning up is over, so is the run.
WITH told AS (
    INSERT INTO event (dag_no, event, kind, key, state, data)
    SELECT $1, last_event + 1, 'run', '', 'cancel_requested', $2 FROM run WHERE dag_no = $1),
limited AS (
    UPDATE dag SET deadline_at = shard_now() + make_interval(secs => $3::float8) WHERE no = $1)
UPDATE run SET last_event = last_event + 1, last_told = last_event + 1, cancel_requested = true
WHERE dag_no = $1;

-- name: untold_cancel(dag_no)
-- What a run was asked to end with, where its code has not been told of that.
SELECT e.data FROM (SELECT seen FROM run WHERE run.dag_no = $1 OFFSET 0) AS r
CROSS JOIN LATERAL (
    SELECT event.data FROM event
    WHERE event.dag_no = $1 AND event.event > r.seen AND kind = 'run' AND state = 'cancel_requested' AND void IS NULL
    ORDER BY event.event LIMIT 1) AS e;

-- name: has_signal(dag_no, id)
SELECT true AS found FROM signal_id WHERE dag_no = $1 AND id = $2;

-- name: told_by_id(namespace, workflow_id, id)
-- Whether the sender of this waits for an answer, of what the run was told that a workflow's id means.
SELECT s.asks FROM (SELECT dag_id FROM workflow WHERE namespace = $1 AND id = $2 OFFSET 0) AS w
CROSS JOIN LATERAL (SELECT no FROM dag WHERE id = w.dag_id OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT asks FROM signal_id WHERE dag_no = d.no AND id = $3 OFFSET 0) AS s;

-- name: add_signal(dag_no, name, id, data, asks)
-- No row where the run was sent one of this id.
WITH noted AS (INSERT INTO signal_id (dag_no, id, asks) VALUES ($1, $3, $5) ON CONFLICT DO NOTHING RETURNING id),
counted AS (
    INSERT INTO signal_count AS c (dag_no, name, sent) SELECT $1, $2, 1 FROM noted
    ON CONFLICT (dag_no, name) DO UPDATE SET sent = c.sent + 1 RETURNING sent),
appended AS (
    INSERT INTO event (dag_no, event, kind, key, state, data)
    SELECT $1, run.last_event + 1, 'signal', 'signal:' || $2::text || '#' || counted.sent, 'received', $4
    FROM counted CROSS JOIN run WHERE run.dag_no = $1)
UPDATE run SET signals = signals + 1, last_event = last_event + 1, last_told = last_event + 1
WHERE dag_no = $1 AND EXISTS (SELECT FROM counted)
RETURNING last_event;

-- name: take_signal(namespace, workflow_id, name, id, data, asks, unread_max, id_age_s, tails, overdue_s)
SELECT * FROM take_signal($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: answer_updates(dag_no, ids, answers)
-- Those that nobody has answered yet; how many of them the run was sent at all.
WITH found AS MATERIALIZED (
    SELECT s.tid, w.answer, s.answer IS NULL AS waits
    FROM unnest($2::text[], $3::text[]) AS w(id, answer)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, answer FROM signal_id WHERE dag_no = $1 AND id = w.id AND asks OFFSET 0) AS s),
written AS (UPDATE signal_id SET answer = found.answer FROM found WHERE signal_id.ctid = found.tid AND found.waits)
SELECT count(*) AS found FROM found;

-- name: update_of(dag_no, id)
SELECT asks, answer FROM signal_id WHERE dag_no = $1 AND id = $2;

-- name: move_signals(dag_no, received, to_dag_no, ids_kept_s)
-- Signals that a run has not received are the first that another one is told, in their order, with their ids; and so are
-- the ids of those that came lately, to whichever run. What it has received and not answered nobody answers any more. Of
-- what they say the head alone is read: what was sent comes last, and may hold a NUL, which Postgres reads in no JSON.
WITH unread AS MATERIALIZED (
    SELECT e.data, e.at, s.name, s.id,
        row_number() OVER (ORDER BY e.event) AS place, row_number() OVER (PARTITION BY s.name ORDER BY e.event) AS nth
    FROM event AS e
    CROSS JOIN LATERAL (SELECT (split_part(e.data, ',"data":', 1) || '}')::json AS said OFFSET 0) AS h
    CROSS JOIN LATERAL (SELECT h.said ->> 'name' AS name, h.said ->> 'id' AS id) AS s
    WHERE e.dag_no = $1 AND e.kind = 'signal'
        AND substring(e.key FROM '[0-9]+$')::int > coalesce(($2::json ->> s.name)::int, 0)),
noted AS (
    INSERT INTO signal_id (dag_no, id, at, asks, answer)
    SELECT $3, id, at, asks, CASE WHEN asks AND id NOT IN (SELECT id FROM unread WHERE id IS NOT NULL)
        THEN coalesce(answer, json_build_object(
            'state', 'failed', 'error', 'the run went on as a new one before it had answered')::text) END
    FROM signal_id
    WHERE dag_no = $1 AND (at > shard_now() - make_interval(secs => $4::float8) OR id IN (SELECT id FROM unread))),
counted AS (INSERT INTO signal_count (dag_no, name, sent) SELECT $3, name, count(*) FROM unread GROUP BY name),
appended AS (
    INSERT INTO event (dag_no, event, at, kind, key, state, data)
    SELECT $3, 1 + place, at, 'signal', 'signal:' || name || '#' || nth, 'received', data FROM unread)
UPDATE run SET signals = u.count, last_event = 1 + u.count, last_told = 1 + u.count
FROM (SELECT count(*) AS count FROM unread) AS u WHERE run.dag_no = $3;

-- name: carry_deadline(dag_no, deadline_at, to_dag_no)
-- The deadline of a run is that of the run which it goes on as; that one's first event keeps it, behind all else: no input
-- ends like that, and one that holds a NUL Postgres would not read as JSON. Without one it is that of the first run: in
-- its place stands when a run is ended that was asked to end.
WITH was AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, f.deadline_at, d.first_deadline_at) AS at
    FROM (
        SELECT created_at + make_interval(secs => deadline_s) AS first_deadline_at
        FROM dag WHERE no = $1 OFFSET 0) AS d
    CROSS JOIN LATERAL (
        SELECT substring(data FROM ',"deadline_at":"([^"]*)"}$')::timestamptz AS deadline_at
        FROM event WHERE event.dag_no = $1 AND event.event = 1 OFFSET 0) AS f),
noted AS (
    UPDATE event SET data = left(data, -1) || ',"deadline_at":' || to_json(was.at)::text || '}'
    FROM was WHERE event.dag_no = $3 AND event.event = 1)
UPDATE dag SET deadline_at = was.at FROM was WHERE dag.no = $3;

-- name: set_continued(dag_no, dag_id)
UPDATE run SET continued_as = $2 WHERE dag_no = $1;

-- name: take_back_end(dag_no)
-- What was asked for at the same event is a part of what mended code asks for there, but for what makes no node: code
-- that fails leaves its timeouts, which cancels their timers.
WITH ended AS MATERIALIZED (SELECT after FROM event WHERE dag_no = $1 AND kind = 'end' AND void IS NULL),
taken AS (
    DELETE FROM event WHERE dag_no = $1 AND after = (SELECT min(after) FROM ended) AND void IS NULL
        AND kind IN ('end', 'cancel', 'publish', 'answer')
    RETURNING after),
cleared AS (UPDATE dag SET ends_as = NULL WHERE no = $1)
UPDATE run SET state = 'running', output = NULL, error = NULL, seen = least(seen, t.after - 1)
FROM (SELECT coalesce(min(after), 1) AS after FROM taken) AS t WHERE dag_no = $1;

-- name: append_missed_ends(dag_no)
WITH missed AS MATERIALIZED (
    SELECT n.*, r.last_event + row_number() OVER (ORDER BY n.no) AS event
    FROM (
        SELECT no, key, generation, state, output, error, CASE WHEN timer THEN 'timer' WHEN NOT sub THEN 'item'
            WHEN key LIKE 'child:%' THEN 'child' WHEN key LIKE 'start:%' THEN 'start'
            WHEN key LIKE 'send:%' THEN 'send' ELSE 'sub' END AS kind
        FROM node
        WHERE no > $1::bigint << 22 AND no < ($1::bigint + 1) << 22
            AND state IN ('succeeded', 'failed', 'skipped', 'cancelled')
            AND key NOT IN (SELECT key FROM event WHERE dag_no = $1 AND after IS NULL AND kind <> 'signal')
            AND key NOT IN (
                SELECT key FROM event
                WHERE dag_no = $1 AND void IS NOT NULL AND after IS NOT NULL AND kind NOT IN ('cancel', 'publish'))) AS n
    CROSS JOIN (SELECT last_event FROM run WHERE dag_no = $1) AS r),
appended AS (
    INSERT INTO event (dag_no, event, kind, key, generation, state, output, error)
    SELECT $1, event, kind, key, generation, state, output,
        CASE WHEN state <> 'succeeded' THEN coalesce(error, state) END
    FROM missed)
UPDATE run SET last_event = c.last, last_told = c.last
FROM (SELECT max(event) AS last FROM missed HAVING count(*) > 0) AS c WHERE run.dag_no = $1;

-- name: end_run(dag_no, state, error)
UPDATE run SET state = $2, error = $3, stuck = NULL WHERE dag_no = $1;

-- name: end_dag_as(dag_no, ends_as)
UPDATE dag SET ends_as = $2, deadline_at = NULL WHERE no = $1;

-- name: set_decider_end(dag_no, output, error)
UPDATE node SET output = $2, error = $3 WHERE no = $1::bigint << 22;

-- name: pin_run(dag_no, version)
UPDATE run SET version = $2 WHERE dag_no = $1;

-- name: unstick(dag_no)
UPDATE run SET stuck = NULL WHERE dag_no = $1;

-- name: history(dag_no, after, rows_max, bytes_max)
-- As many as come before they take so many bytes together, and one.
SELECT event, at, kind, key, generation, state, output, error, data, after, reset, void,
    (SELECT last_event FROM run WHERE dag_no = $1) AS last_event FROM (
    SELECT page.*, sum(bytes) OVER (ORDER BY event) AS total FROM (
        SELECT e.*, 120 + octet_length(key) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0)
            + coalesce(octet_length(data), 0) AS bytes
        FROM event AS e WHERE dag_no = $1 AND e.event > $2 ORDER BY e.event LIMIT $3) AS page) AS sized
WHERE total - bytes < $4
ORDER BY event;

-- name: news_of_runs(dag_nos, generations, turns, afters, rows_max, bytes_max)
-- Of each run whose decider is awake in this generation, and has written this turn last, as many events as come before
-- they take so many bytes together, and one; a row without any where its code has seen all that it is told of.
SELECT w.place::int, r.last_event, e.*
FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[])
    WITH ORDINALITY AS w(dag_no, generation, turn, after, place)
CROSS JOIN LATERAL (
    SELECT state, turn, last_event, last_told > seen AS tells FROM run WHERE dag_no = w.dag_no OFFSET 0) AS r
CROSS JOIN LATERAL (SELECT state, generation FROM node WHERE no = w.dag_no << 22 OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT paused FROM dag WHERE no = w.dag_no OFFSET 0) AS d
LEFT JOIN LATERAL (SELECT * FROM events_behind(w.dag_no, w.after, $5, $6)) AS e ON r.tells
WHERE r.state = 'running' AND r.turn = w.turn AND n.state = 'released' AND n.generation = w.generation AND NOT d.paused
ORDER BY w.place, e.o_event;

-- name: take_turns(dag_ids, namespaces, generations, secret_hashes, turns, digests, lasts, seens, receiveds, received_totals, made_bys, after_mins, after_maxs, item_counts, command_counts, result_counts, command_places, command_nths, item_nths, command_keys, command_afters, command_datas, item_ids, topics, fingerprints, items, result_places, result_nths, result_keys, result_states, result_outputs, result_errors, nodes_max, unfinished_max, overdue_s, rows_max, bytes_max)
SELECT * FROM take_turns($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37);

-- name: bytes_of_runs(dag_ids)
SELECT r.dag_id::text, 1000 + r.bytes + (
    SELECT coalesce(sum(octet_length(key) + octet_length(value)), 0) FROM published WHERE dag_no = r.dag_no) AS bytes
FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (SELECT no FROM dag WHERE id = w.id OFFSET 0) AS d
CROSS JOIN LATERAL (
    SELECT dag_no, dag_id, coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0)
        + coalesce(octet_length(stuck), 0) AS bytes
    FROM run WHERE dag_no = d.no OFFSET 0) AS r;

-- name: published_keys(dag_no)
SELECT key, octet_length(value) AS bytes FROM published WHERE dag_no = $1;

-- name: list_runs(namespace, version, before_id, rows_max)
SELECT dag_id::text FROM run
WHERE namespace = $1 AND dag_id < $3 AND ($2::text IS NULL OR version = $2) ORDER BY dag_id DESC LIMIT $4;

-- name: list_runs_by_type(namespace, type, state, version, before_id, rows_max)
SELECT dag_id::text FROM run
WHERE namespace = $1 AND type = $2 AND dag_id < $5 AND ($3::text IS NULL OR state = $3)
    AND ($4::text IS NULL OR version = $4)
ORDER BY dag_id DESC LIMIT $6;

-- name: list_runs_by_state(namespace, state, version, before_id, rows_max)
SELECT dag_id::text FROM run
WHERE namespace = $1 AND state = $2 AND dag_id < $4 AND ($3::text IS NULL OR version = $3)
ORDER BY dag_id DESC LIMIT $5;

-- name: list_stuck_runs(namespace, type, version, before_id, rows_max)
SELECT dag_id::text FROM run
WHERE namespace = $1 AND stuck IS NOT NULL AND dag_id < $4 AND ($2::text IS NULL OR type = $2)
    AND ($3::text IS NULL OR version = $3)
ORDER BY dag_id DESC LIMIT $5;
