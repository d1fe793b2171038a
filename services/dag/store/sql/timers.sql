-- Timers that run: nodes that are released and wait for nothing but their time.

-- name: start_timers(node_nos)
-- Their time counts from their release, which this transaction has written; in how many seconds each is due.
INSERT INTO timer (node_no, generation, due_at, look_at)
SELECT n.no, n.generation, due.at, due.at
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (
    SELECT no, generation, released_at FROM node WHERE no = w.no AND state = 'released' AND timer OFFSET 0) AS n
CROSS JOIN LATERAL (SELECT item::json AS said FROM node_spec WHERE node_no = n.no OFFSET 0) AS s
CROSS JOIN LATERAL (
    SELECT coalesce((s.said ->> 'at')::timestamptz,
        n.released_at + make_interval(secs => (s.said ->> 'delay_s')::float8)) AS at) AS due
ON CONFLICT (node_no) DO UPDATE SET generation = excluded.generation, due_at = excluded.due_at,
    look_at = excluded.look_at
RETURNING extract(epoch FROM due_at - shard_now())::float8 AS in_s;

-- name: delete_timers(node_nos)
DELETE FROM timer WHERE ctid = ANY(ARRAY(
    SELECT t.tid FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM timer WHERE node_no = w.no OFFSET 0) AS t));

-- name: next_timers(ahead_s, rows_max)
-- Those that are due, or are soon, and in how many seconds.
SELECT node_no AS no, extract(epoch FROM look_at - n.at)::float8 AS in_s,
    extract(epoch FROM n.at - due_at)::float8 AS late_s
FROM (SELECT shard_now() AS at OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT node_no, look_at, due_at FROM timer
    WHERE look_at <= n.at + make_interval(secs => $1::float8) ORDER BY look_at LIMIT $2) AS t;

-- name: take_due_timers(node_nos)
-- Only what is still due: a retry may have begun the timer anew, another process may have been first.
DELETE FROM timer WHERE ctid = ANY(ARRAY(
    SELECT t.tid FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM timer WHERE node_no = w.no AND due_at <= shard_now() OFFSET 0) AS t))
RETURNING node_no, generation;

-- name: put_off_timers(node_nos, delay_s)
UPDATE timer SET look_at = shard_now() + make_interval(secs => $2::float8)
WHERE ctid = ANY(ARRAY(
    SELECT t.tid FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM timer WHERE node_no = w.no OFFSET 0) AS t));

-- name: nothing_runs()
-- For tests: whether nothing runs but timers. Nodes in whose place a DAG or a run goes run by what is within them.
SELECT NOT EXISTS (SELECT FROM outbox) AND NOT EXISTS (SELECT FROM adding) AND NOT EXISTS (
    SELECT FROM (SELECT no FROM dag WHERE state IN ('running', 'cancelling') OFFSET 0) AS d
    CROSS JOIN LATERAL (
        SELECT FROM node
        WHERE node.no >= d.no << 22 AND node.no < (d.no + 1) << 22 AND node.state = 'released' AND NOT node.timer
            AND NOT node.sub
        LIMIT 1) AS n) AS idle;

-- name: skip_time()
-- For tests: the next timer is due now, and each other one so much sooner.
UPDATE timer SET due_at = due_at - skip.by, look_at = due_at - skip.by
FROM (SELECT min(due_at) - shard_now() AS by FROM timer) AS skip
WHERE skip.by > interval '0'
RETURNING 1 AS sooner;

-- name: timers_of(nos)
-- What timers were made of, and when those that run are due.
SELECT w.no, s.item, t.due_at FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = w.no OFFSET 0) AS s
LEFT JOIN LATERAL (SELECT due_at FROM timer WHERE node_no = w.no OFFSET 0) AS t ON true;

-- name: older_owner(level)
-- Whether the shard's owner is an older program, which does not know what timers and runs are.
SELECT owner IS NOT NULL AND expires_at > shard_now() AND (level < $1::int OR level_epoch <> epoch) AS older
FROM shard_owner;
