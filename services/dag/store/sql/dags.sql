-- Blocks about DAG rows.

-- columns: dag_columns
no, id::text, namespace, key, name, state, open, held, paused, closed, on_failure, deadline_s, deadline_at,
cancel_cause, reason, metadata, created_at, finished_at, next_n, structure_version, edges, externals, blocked,
released, succeeded, failed, skipped, cancelled, depth, parent_dag::text, parent_node, parent_generation, endings,
last_event, expanded, cleanups, cleanup_left, cleanup_phase, verdict, started_lift, path_lift, tolerated,
workflow, ends_as

-- name: lock_dags(ids)
-- Takes the locks, in ascending order, and does nothing else: whatever follows sees a snapshot from after the wait.
SELECT {dag_columns:d}
FROM dag d WHERE d.no = ANY(ARRAY(
    SELECT found.no FROM unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (SELECT no FROM dag WHERE id = w.id OFFSET 0) AS found))
ORDER BY d.no FOR UPDATE OF d;

-- name: lock_dag_of_workflow(namespace, id)
-- The same of the last run of a workflow's id. Whoever has waited may have another one's row by then.
SELECT {dag_columns:d}
FROM dag d WHERE d.no = (
    SELECT found.no FROM (SELECT dag_id FROM workflow WHERE namespace = $1 AND id = $2 OFFSET 0) AS w
    CROSS JOIN LATERAL (SELECT no FROM dag WHERE id = w.dag_id OFFSET 0) AS found)
FOR UPDATE OF d;

-- name: lock_dag_nos(nos)
-- The same by number.
SELECT {dag_columns:d}
FROM dag d WHERE d.no = ANY($1::bigint[])
ORDER BY d.no FOR UPDATE OF d;

-- name: insert_dag(id, namespace, key, name, open, held, on_failure, deadline_s, metadata, depth, parent_dag, parent_node, parent_generation, started_lift, path_lift, content)
-- No row when the key, or a sub-DAG's id, is taken.
INSERT INTO dag (id, namespace, key, name, open, held, on_failure, deadline_s, metadata, deadline_at,
    depth, parent_dag, parent_node, parent_generation, started_lift, path_lift, content)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, shard_now() + make_interval(secs => $8), $10, $11, $12, $13, $14, $15, $16)
ON CONFLICT DO NOTHING
RETURNING {dag_columns};

-- name: content_of(no)
SELECT content FROM dag WHERE no = $1;

-- name: get_dag(id, namespace)
SELECT {dag_columns}
FROM dag WHERE id = $1 AND namespace = $2;

-- name: get_dags(ids)
SELECT d.* FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT {dag_columns}
    FROM dag WHERE id = w.id OFFSET 0) AS d;

-- name: get_dag_by_key(namespace, key)
SELECT {dag_columns}
FROM dag WHERE namespace = $1 AND key = $2 AND key IS NOT NULL;

-- name: leave_key(namespace, key)
-- A DAG that has ended gives its key up to one that is to be the only one at work.
UPDATE dag SET key = NULL
WHERE namespace = $1 AND key = $2 AND key IS NOT NULL AND state IN ('succeeded', 'failed', 'cancelled');

-- name: grow_dag(no, next_n, edges, externals, structure_changed, expanded)
UPDATE dag SET next_n = $2, edges = $3, externals = $4, expanded = $6,
    structure_version = structure_version + CASE WHEN $5::boolean THEN 1 ELSE 0 END
WHERE no = $1
RETURNING structure_version;

-- name: set_flags(no, open, held, paused, closed, reason)
UPDATE dag SET open = $2, held = $3, paused = $4, closed = $5, reason = $6,
    paused_at = CASE WHEN $4 THEN coalesce(paused_at, shard_now()) END
WHERE no = $1;

-- name: set_tolerated(no, tolerated)
UPDATE dag SET tolerated = $2 WHERE no = $1;

-- name: reopen_dag(no)
-- A retried DAG runs again; its deadline counts anew.
UPDATE dag SET endings = endings + 1, finished_at = NULL, cancel_cause = NULL, reason = NULL,
    deadline_at = shard_now() + make_interval(secs => deadline_s)
WHERE no = $1
RETURNING deadline_at, endings;

-- name: settle(node_nos, node_states, errors, item_ids, send_node_nos, send_generations, send_actions, send_item_ids, send_inputs, delay_s, nos, was_states, dag_states, causes, blockeds, releaseds, succeededs, faileds, skippeds, cancelleds, last_events, change_dag_nos, change_lasts, change_nodes, change_dags)
-- All that a transaction decided, at once: nodes, what the queue is to be told, the DAGs' rows with new counts, and
-- the log of it.
WITH decided AS MATERIALIZED (
    SELECT n.tid, w.state, w.error, w.item_id
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::uuid[]) AS w(no, state, error, item_id)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = w.no OFFSET 0) AS n
    LIMIT cardinality($1::bigint[])),
moved AS (
    UPDATE node SET state = w.state, error = coalesce(w.error, node.error),
        item_id = coalesce(w.item_id, node.item_id),
        released_at = CASE WHEN w.state = 'released' THEN shard_now() ELSE node.released_at END,
        finished_at = CASE WHEN w.state <> 'released' THEN shard_now() END
    FROM decided w WHERE node.ctid = w.tid),
sent AS (
    INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
    SELECT w.node_no, w.generation, w.action, w.item_id, w.inputs,
        shard_now(), shard_now() + make_interval(secs => $10::float8)
    FROM unnest($5::bigint[], $6::int[], $7::text[], $8::uuid[], $9::text[])
        AS w(node_no, generation, action, item_id, inputs)
    ON CONFLICT DO NOTHING),
counted AS MATERIALIZED (
    SELECT w.*, d.tid FROM unnest($11::bigint[], $12::text[], $13::text[], $14::text[], $15::int[], $16::int[],
        $17::int[], $18::int[], $19::int[], $20::int[], $21::bigint[])
        AS w(no, was, state, cause, blocked, released, succeeded, failed, skipped, cancelled, last_event)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM dag WHERE no = w.no OFFSET 0) AS d
    LIMIT cardinality($11::bigint[])),
logged AS (
    INSERT INTO change (dag_no, last_event, nodes, dag)
    SELECT w.dag_no, w.last_event, w.nodes, w.dag
    FROM unnest($22::bigint[], $23::bigint[], $24::text[], $25::text[]) AS w(dag_no, last_event, nodes, dag)),
tallied AS (
    INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled)
    SELECT c.state, 1, c.succeeded, c.failed, c.skipped, c.cancelled FROM counted c
    WHERE c.state NOT IN ('running', 'cancelling') AND c.was IN ('running', 'cancelling'))
UPDATE dag SET state = c.state, cancel_cause = c.cause, blocked = c.blocked,
    released = c.released, succeeded = c.succeeded, failed = c.failed, skipped = c.skipped, cancelled = c.cancelled,
    last_event = c.last_event,
    finished_at = CASE WHEN c.state NOT IN ('running', 'cancelling') THEN coalesce(dag.finished_at, shard_now()) END
FROM counted c WHERE dag.ctid = c.tid
RETURNING dag.no, dag.finished_at;

-- name: untally(state, succeeded, failed, skipped, cancelled)
-- A DAG that had ended runs again.
INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled) VALUES ($1, -1, -$2::int, -$3::int, -$4::int, -$5::int);

-- name: fold_tally(rows_max)
-- Many deltas into one row a state. Deltas of running transactions are not seen and stay for the next time.
WITH taken AS (
    DELETE FROM tally WHERE id = ANY(ARRAY(SELECT id FROM tally ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *)
INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled)
SELECT state, sum(dags), sum(succeeded), sum(failed), sum(skipped), sum(cancelled) FROM taken GROUP BY state;

-- name: count_tally()
SELECT count(*)::int AS rows FROM tally;

-- name: health()
SELECT state, sum(dags)::bigint AS dags, sum(blocked)::bigint AS blocked, sum(released)::bigint AS released,
    sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed, sum(skipped)::bigint AS skipped,
    sum(cancelled)::bigint AS cancelled
FROM (
    SELECT state, dags, 0 AS blocked, 0 AS released, succeeded, failed, skipped, cancelled FROM tally
    UNION ALL
    SELECT state, 1, blocked, released, succeeded, failed, skipped, cancelled FROM dag
    WHERE state IN ('running', 'cancelling')) AS both_kinds
GROUP BY state;

-- name: overdue_dags(dags_max)
-- Running DAGs whose deadline has passed; the transaction that cancels one looks again under its lock.
SELECT no FROM dag
WHERE state = 'running' AND deadline_at IS NOT NULL AND deadline_at <= (SELECT shard_now())
ORDER BY deadline_at LIMIT $1;

-- name: past_deadline(no)
SELECT deadline_at <= shard_now() AS past FROM dag WHERE no = $1;

-- name: list_dags(namespace, before_id, rows_max)
SELECT {dag_columns}
FROM dag WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3;

-- name: list_dags_by_state(namespace, state, before_id, rows_max)
SELECT {dag_columns}
FROM dag WHERE namespace = $1 AND state = $2 AND id < $3 ORDER BY id DESC LIMIT $4;

-- name: list_dags_by_name(namespace, name, state, before_id, rows_max)
SELECT {dag_columns}
FROM dag WHERE namespace = $1 AND name = $2 AND name IS NOT NULL AND ($3::text IS NULL OR state = $3) AND id < $4
ORDER BY id DESC LIMIT $5;

-- name: list_dags_by_key(namespace, key, name, state, before_id)
-- One at most.
SELECT {dag_columns}
FROM dag WHERE namespace = $1 AND key = $2 AND key IS NOT NULL AND ($3::text IS NULL OR name = $3)
    AND ($4::text IS NULL OR state = $4) AND id < $5;
