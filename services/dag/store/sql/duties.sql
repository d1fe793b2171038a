-- What transactions leave to be done: outbox rows, add calls, walks. These tables are empty most of the time, so
-- their statements find rows by LATERAL lookups and touch them by ctid: no statistics can turn that round.

-- name: queue_shards_beside()
-- Numbers of the queue's shards in this very database.
SELECT substring(nspname FROM '[0-9]+$')::int AS number FROM pg_namespace WHERE nspname ~ '^queue_[0-9]+$';

-- name: poll_duties(stopped_s, tally_rows_min, ahead_s)
-- What there is to do here, for whichever duty: the one look that an idle shard costs its owner.
SELECT EXISTS (SELECT FROM outbox WHERE due_at <= n.at) AS outbox,
    EXISTS (SELECT FROM spread) OR EXISTS (SELECT FROM scan) OR EXISTS (SELECT FROM reopening) AS walks,
    EXISTS (SELECT FROM adding WHERE started_at <= n.at - make_interval(secs => $1::float8))
        OR EXISTS (SELECT FROM dag WHERE state = 'running' AND deadline_at IS NOT NULL AND deadline_at <= n.at)
        OR EXISTS (SELECT FROM external
            WHERE deadline_at IS NOT NULL AND resolved_at IS NULL AND deadline_at <= n.at)
        OR (SELECT count(*) FROM tally) >= $2::int AS sweep,
    EXISTS (SELECT FROM timer WHERE look_at <= n.at + make_interval(secs => $3::float8)) AS timers,
    EXISTS (SELECT FROM schedule WHERE look_at IS NOT NULL AND look_at <= n.at + make_interval(secs => $3::float8))
        OR EXISTS (SELECT FROM waiting_slot) AS slots
FROM (SELECT shard_now() AS at OFFSET 0) AS n;

-- name: claim_overdue(rows_max, bytes_max, retry_s, retry_s_max)
-- Rows that nobody has sent yet, as many as come before their inputs take so many bytes together, and one; they come
-- again later, each time after a longer pause.
WITH due AS MATERIALIZED (
    SELECT ctid AS tid, due_at, coalesce(octet_length(inputs), 0) + coalesce(octet_length(retry), 0) AS size
    FROM outbox WHERE due_at <= (SELECT shard_now())
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED),
sized AS (SELECT tid, size, sum(size) OVER (ORDER BY due_at, tid) AS bytes FROM due),
claimed AS (
    UPDATE outbox SET tries = tries + 1,
        due_at = shard_now() + make_interval(secs => least($3::float8 * power(2, least(tries, 20)), $4::float8))
    WHERE ctid = ANY(ARRAY(SELECT tid FROM sized WHERE bytes - size < $2))
    RETURNING node_no, generation, action, item_id::text, inputs, retry)
SELECT c.node_no, c.generation, c.action, c.item_id, d.namespace, c.inputs, c.retry
FROM claimed c CROSS JOIN LATERAL (SELECT namespace FROM dag WHERE no = c.node_no >> 22 OFFSET 0) AS d;

-- name: delete_sent(node_nos, generations, actions, added)
WITH added AS (
    DELETE FROM adding WHERE ctid = ANY(ARRAY(
        SELECT a.ctid FROM unnest($4::bigint[]) AS w(first_no)
        CROSS JOIN LATERAL (SELECT ctid FROM adding WHERE first_no = w.first_no OFFSET 0) AS a)))
DELETE FROM outbox WHERE ctid = ANY(ARRAY(
    SELECT o.ctid FROM unnest($1::bigint[], $2::int[], $3::text[]) AS w(node_no, generation, action)
    CROSS JOIN LATERAL (
        SELECT ctid FROM outbox
        WHERE node_no = w.node_no AND generation = w.generation AND action = w.action OFFSET 0) AS o));

-- name: drop_sends(node_nos)
-- What was to be made or revived of generations that a retry has ended.
DELETE FROM outbox WHERE ctid = ANY(ARRAY(
    SELECT o.ctid FROM unnest($1::bigint[]) AS w(node_no)
    CROSS JOIN LATERAL (SELECT ctid, action FROM outbox WHERE node_no = w.node_no OFFSET 0) AS o
    WHERE o.action IN ('enqueue', 'revive', 'start')));

-- name: count_outbox(rows_max)
SELECT count(*)::int AS rows FROM (SELECT 1 FROM outbox LIMIT $1) AS found;

-- name: insert_adding(first_no, last_no)
INSERT INTO adding (first_no, last_no) VALUES ($1, $2);

-- name: delete_adding(first_no)
DELETE FROM adding WHERE first_no = $1;

-- name: adding_of(dag_no)
SELECT first_no, last_no FROM adding WHERE first_no >= $1::bigint << 22 AND first_no < ($1::bigint + 1) << 22
ORDER BY first_no;

-- name: claim_stopped_adds(age_s, rows_max)
-- Those that stopped longest ago. Whoever takes one puts it behind the others: what cannot be finished now holds up
-- none of them.
UPDATE adding SET started_at = shard_now()
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM adding WHERE started_at <= (SELECT shard_now()) - make_interval(secs => $1::float8)
    ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING first_no, last_no;

-- name: insert_spread(node_nos, generations)
INSERT INTO spread (node_no, generation)
SELECT w.node_no, w.generation FROM unnest($1::bigint[], $2::int[]) AS w(node_no, generation)
ON CONFLICT (node_no) DO UPDATE SET generation = excluded.generation, after_down = -1;

-- name: spread_of(dag_no, rows_max)
-- Joined with the node: a walk whose node has moved on is to be dropped.
SELECT s.node_no AS no, s.after_down, n.state, n.generation = s.generation AS current
FROM (SELECT node_no, after_down, generation FROM spread
      WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22 ORDER BY node_no LIMIT $2) AS s
CROSS JOIN LATERAL (SELECT state, generation FROM node WHERE no = s.node_no OFFSET 0) AS n;

-- name: advance_spread(node_no, after_down)
UPDATE spread SET after_down = $2 WHERE node_no = $1;

-- name: delete_spread(node_nos)
DELETE FROM spread WHERE node_no = ANY($1::bigint[]);

-- name: clear_spread(dag_no)
DELETE FROM spread WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22;

-- name: insert_scan(dag_no, kind, after_no)
-- A walk asked for again begins again.
INSERT INTO scan (dag_no, kind, after_no) VALUES ($1, $2, $3)
ON CONFLICT (dag_no, kind) DO UPDATE SET after_no = excluded.after_no;

-- name: scans_of(dag_no)
SELECT kind, after_no FROM scan WHERE dag_no = $1;

-- name: advance_scan(dag_no, kind, after_no)
UPDATE scan SET after_no = $3 WHERE dag_no = $1 AND kind = $2;

-- name: delete_scan(dag_no, kind)
DELETE FROM scan WHERE dag_no = $1 AND kind = $2;

-- name: walks(after_dag_no, dags_max)
-- DAGs with a walk to go on with, from a number on: one lookup in each table leads from a DAG to the next, however
-- many rows it has.
WITH RECURSIVE walking(dag_no) AS (
    SELECT $1::bigint
    UNION ALL
    SELECT least(
        (SELECT node_no >> 22 FROM spread WHERE node_no >= (walking.dag_no + 1) << 22 ORDER BY node_no LIMIT 1),
        (SELECT scan.dag_no FROM scan WHERE scan.dag_no > walking.dag_no ORDER BY scan.dag_no LIMIT 1),
        (SELECT r.dag_no FROM reopening AS r WHERE r.dag_no > walking.dag_no ORDER BY r.dag_no LIMIT 1))
    FROM walking WHERE walking.dag_no IS NOT NULL)
SELECT found.dag_no, d.namespace
FROM (SELECT dag_no FROM walking OFFSET 1 LIMIT $2) AS found
CROSS JOIN LATERAL (SELECT namespace FROM dag WHERE no = found.dag_no OFFSET 0) AS d;
