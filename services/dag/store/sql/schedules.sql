-- Schedules. Whatever decides a slot has locked its schedule's row, in a statement that does nothing else.

-- columns: schedule_columns
no, namespace, id, spec, action, plan, overlap, catchup_s, jitter_s, paused, reason, next_at, ticks, created_at,
updated_at

-- name: insert_schedule(namespace, id, spec, action, plan, overlap, catchup_s, jitter_s, paused)
-- No row when there is one of this id.
INSERT INTO schedule (namespace, id, spec, action, plan, overlap, catchup_s, jitter_s, paused)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING
RETURNING no;

-- name: lock_schedule(namespace, id)
SELECT {schedule_columns}
FROM schedule WHERE namespace = $1 AND id = $2 FOR UPDATE;

-- name: lock_schedule_no(no)
SELECT {schedule_columns}
FROM schedule WHERE no = $1 FOR UPDATE;

-- name: get_schedule(namespace, id)
SELECT no, namespace, id, spec, action, '' AS plan, overlap, catchup_s, jitter_s, paused, reason, next_at, ticks,
    created_at, updated_at
FROM schedule WHERE namespace = $1 AND id = $2;

-- name: list_schedules(namespace, after_id, rows_max, bytes_max)
-- As many as come before they take so many bytes together, and one.
SELECT {schedule_columns}
FROM (
    SELECT page.*, sum(octet_length(action) + octet_length(spec)) OVER (ORDER BY id) AS bytes FROM (
        SELECT no, namespace, id, spec, action, '' AS plan, overlap, catchup_s, jitter_s, paused, reason, next_at, ticks,
            created_at, updated_at
        FROM schedule WHERE namespace = $1 AND id > $2 ORDER BY id LIMIT $3) AS page) AS sized
WHERE bytes - octet_length(action) - octet_length(spec) < $4
ORDER BY id;

-- name: count_schedules(namespace, rows_max)
SELECT count(*)::int AS schedules FROM (SELECT FROM schedule WHERE namespace = $1 LIMIT $2) AS found;

-- name: replace_schedule(no, spec, action, plan, overlap, catchup_s, jitter_s, paused, reason, next_at, look_at)
UPDATE schedule SET spec = $2, action = $3, plan = $4, overlap = $5, catchup_s = $6, jitter_s = $7, paused = $8,
    reason = $9, next_at = $10, look_at = $11, updated_at = shard_now()
WHERE no = $1
RETURNING updated_at;

-- name: advance_schedule(no, next_at, look_at, ticks)
UPDATE schedule SET next_at = $2, look_at = $3, ticks = $4 WHERE no = $1;

-- name: put_off_schedule(no, delay_s)
UPDATE schedule SET look_at = shard_now() + make_interval(secs => $2::float8) WHERE no = $1 AND look_at IS NOT NULL;

-- name: delete_schedule(no)
-- With all that it has, which a snapshot from before its lock would not show.
WITH ticks AS (DELETE FROM tick WHERE schedule_no = $1),
waiting AS (DELETE FROM waiting_slot WHERE schedule_no = $1),
runs AS (DELETE FROM schedule_run WHERE schedule_no = $1)
DELETE FROM schedule WHERE no = $1;

-- name: schedule_clock()
SELECT shard_now() AS at;

-- name: prune_runs(no, rows_max)
-- Forget runs that have ended, of so many behind those that were looked at before; behind the last begins the first.
WITH looked AS MATERIALIZED (
    SELECT r.tid, r.dag_no, coalesce(d.state, '') IN ('running', 'cancelling') AS goes_on
    FROM (
        SELECT ctid AS tid, dag_no FROM schedule_run
        WHERE schedule_no = $1 AND dag_no > (SELECT pruned_to FROM schedule WHERE no = $1)
        ORDER BY schedule_no, dag_no LIMIT $2) AS r
    LEFT JOIN LATERAL (SELECT state FROM dag WHERE no = r.dag_no OFFSET 0) AS d ON true),
gone AS (DELETE FROM schedule_run WHERE ctid = ANY (ARRAY(SELECT tid FROM looked WHERE NOT goes_on))),
reached AS (SELECT CASE WHEN count(*) < $2 THEN 0 ELSE max(dag_no) END AS dag_no FROM looked)
UPDATE schedule SET pruned_to = reached.dag_no FROM reached
WHERE schedule.no = $1 AND schedule.pruned_to <> reached.dag_no;

-- name: situation(no)
-- By a snapshot from after the lock: what is unfinished, what waits, and the last tick. While a run is unfinished it is
-- the turn of what need not wait for that.
SELECT shard_now() AS at, runs.unfinished,
    (SELECT count(*)::int FROM (
        SELECT FROM waiting_slot WHERE schedule_no = $1 AND kind = 'slot' LIMIT 100) AS found) AS buffered,
    w.no AS waiting_no, w.kind AS waiting_kind, w.at AS waiting_at, w.overlap AS waiting_overlap, w.tick AS waiting_tick,
    w.request::text AS waiting_request, t.no AS last_no, t.kind AS last_kind, t.decision AS last_decision,
    t.reason AS last_reason
FROM (
    SELECT EXISTS (
        SELECT FROM (SELECT dag_no FROM schedule_run WHERE schedule_no = $1 ORDER BY schedule_no, dag_no OFFSET 0) AS r
        CROSS JOIN LATERAL (SELECT state FROM dag WHERE no = r.dag_no OFFSET 0) AS d
        WHERE d.state IN ('running', 'cancelling')) AS unfinished
    OFFSET 0) AS runs
LEFT JOIN LATERAL (
    SELECT no, kind, at, overlap, tick, request FROM waiting_slot WHERE schedule_no = $1
    ORDER BY runs.unfinished AND kind = 'backfill' AND overlap = 'allow' DESC, kind DESC, at, no LIMIT 1) AS w ON true
LEFT JOIN LATERAL (
    SELECT no, kind, decision, reason FROM tick WHERE schedule_no = $1 ORDER BY no DESC LIMIT 1) AS t ON true;

-- name: unfinished_runs(no, rows_max)
SELECT r.dag_no
FROM (SELECT dag_no FROM schedule_run WHERE schedule_no = $1 ORDER BY schedule_no, dag_no OFFSET 0) AS r
CROSS JOIN LATERAL (SELECT state FROM dag WHERE no = r.dag_no OFFSET 0) AS d
WHERE d.state IN ('running', 'cancelling') LIMIT $2;

-- name: insert_tick(schedule_no, no, kind, at, through, slots, decision, reason, run, request, kept)
-- The ticks of a schedule are its last so many.
WITH old AS (DELETE FROM tick WHERE schedule_no = $1 AND no <= $2 - $11::int)
INSERT INTO tick (schedule_no, no, kind, at, through, slots, decision, reason, run, request)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
RETURNING decided_at;

-- name: extend_tick(schedule_no, no, through, slots)
UPDATE tick SET through = $3, slots = slots + $4, decided_at = shard_now() WHERE schedule_no = $1 AND no = $2;

-- name: start_tick(schedule_no, no, decision, reason, run)
-- What was buffered has its turn.
UPDATE tick SET decision = $3, reason = $4, run = $5, decided_at = shard_now() WHERE schedule_no = $1 AND no = $2;

-- name: insert_run(schedule_no, dag_no)
INSERT INTO schedule_run VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: insert_waiting_slots(schedule_no, kind, ats, overlap, tick, request)
INSERT INTO waiting_slot (schedule_no, kind, at, overlap, tick, request)
SELECT $1, $2, at, $4, $5, $6 FROM unnest($3::timestamptz[]) AS w(at);

-- name: count_waiting_slots(schedule_no, rows_max)
SELECT count(*)::int AS slots FROM (
    SELECT FROM waiting_slot WHERE schedule_no = $1 AND kind = 'backfill' LIMIT $2) AS found;

-- name: delete_waiting_slot(schedule_no, no)
DELETE FROM waiting_slot WHERE schedule_no = $1 AND no = $2;

-- name: tick_of_request(schedule_no, request)
SELECT no, kind, at, through, slots, decision, reason, run::text, decided_at
FROM tick WHERE schedule_no = $1 AND request = $2 AND kind = 'trigger' ORDER BY no LIMIT 1;

-- name: slots_of_request(schedule_no, request)
-- Of a backfill; a trigger has no part in it, whatever it was named.
SELECT (
        SELECT coalesce(sum(slots), 0) FROM tick
        WHERE schedule_no = $1 AND request = $2 AND kind = 'backfill')::int
    + (
        SELECT count(*) FROM waiting_slot
        WHERE schedule_no = $1 AND request = $2 AND kind = 'backfill')::int AS slots;

-- name: ticks_page(schedule_no, before_no, rows_max)
SELECT no, kind, at, through, slots, decision, reason, run::text, decided_at
FROM tick WHERE schedule_no = $1 AND no < $2 ORDER BY no DESC LIMIT $3;

-- name: next_schedules(ahead_s, rows_max)
-- Those with a slot that is due, or is soon, and in how many seconds.
SELECT s.no, s.namespace, extract(epoch FROM s.look_at - n.at)::float8 AS in_s
FROM (SELECT shard_now() AS at OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT no, namespace, look_at FROM schedule
    WHERE look_at IS NOT NULL AND look_at <= n.at + make_interval(secs => $1::float8)
    ORDER BY look_at LIMIT $2) AS s;

-- name: turns_of_waiting(after_no, rows_max)
-- Schedules with slots that wait; `due` where it may be the turn of one: nothing of theirs is unfinished, or that does
-- not matter.
SELECT w.schedule_no, s.namespace, NOT s.paused AND (
    EXISTS (SELECT FROM waiting_slot WHERE schedule_no = w.schedule_no AND overlap = 'allow')
    OR NOT EXISTS (
        SELECT FROM (
            SELECT dag_no FROM schedule_run WHERE schedule_no = w.schedule_no ORDER BY schedule_no, dag_no
            OFFSET 0) AS r
        CROSS JOIN LATERAL (SELECT state FROM dag WHERE no = r.dag_no OFFSET 0) AS d
        WHERE d.state IN ('running', 'cancelling'))) AS due
FROM (
    SELECT DISTINCT schedule_no FROM waiting_slot WHERE schedule_no > $1 ORDER BY schedule_no LIMIT $2) AS w
CROSS JOIN LATERAL (SELECT namespace, paused FROM schedule WHERE no = w.schedule_no OFFSET 0) AS s
ORDER BY w.schedule_no;
