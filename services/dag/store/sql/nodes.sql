-- Blocks about nodes. All run under the lock of the DAG's row.
--
-- Arrays drive: `CROSS JOIN LATERAL (... OFFSET 0)` leaves the planner no other order than one index lookup per
-- element, also with the statistics of an empty table. Updates find their rows so first and then take them by
-- ctid (which the DAG's lock keeps still); the LIMIT, which cuts off nothing, tells the planner that they are few.

-- columns: node_columns
dag_no, no, key, item_id::text, state, generation, trigger, pass_outputs, enqueued, up_left, up_ok, up_failed,
up_skipped, up_cancelled, ext_left, ext_failed, sub, run_on, tolerate, timer

-- name: nodes_by_key(dag_no, keys)
SELECT n.* FROM unnest($2::text[]) AS w(key) CROSS JOIN LATERAL (
    SELECT {node_columns}, fingerprint
    FROM node WHERE dag_no = $1 AND key = w.key OFFSET 0) AS n;

-- name: nodes_by_no(nos)
SELECT n.* FROM unnest($1::bigint[]) AS w(no) CROSS JOIN LATERAL (
    SELECT {node_columns}
    FROM node WHERE no = w.no OFFSET 0) AS n;

-- name: nodes_between(first_no, last_no, states)
SELECT {node_columns}
FROM node WHERE no BETWEEN $1 AND $2 AND state = ANY($3::text[])
ORDER BY no;

-- name: insert_nodes(dag_no, nos, keys, item_ids, topics, triggers, passes, fingerprints, enqueueds, lefts, oks, faileds, skippeds, cancelleds, ext_lefts, ext_faileds, items, subs, run_ons, tolerates, timers)
-- Blocked. Topics, triggers, items and run_ons come line by line, fingerprints one behind the other.
WITH want AS MATERIALIZED (
    SELECT no, key, item_id, coalesce(topic, '') AS topic, trigger, pass,
        substring($8::bytea FROM (nth::int - 1) * 16 + 1 FOR 16) AS fingerprint, enqueued,
        l, o, f, s, c, ext_left, ext_failed, item, sub, run_on, tolerate, timer
    FROM unnest($2::bigint[], $3::text[], $4::uuid[], string_to_array($5::text, E'\n'),
        string_to_array($6::text, E'\n'), $7::boolean[], $9::boolean[], $10::int[], $11::int[], $12::int[], $13::int[],
        $14::int[], $15::int[], $16::boolean[], string_to_array($17::text, E'\n'), $18::boolean[],
        string_to_array($19::text, E'\n', ''), $20::boolean[], $21::boolean[])
        WITH ORDINALITY AS w(no, key, item_id, topic, trigger, pass, enqueued, l, o, f, s, c, ext_left, ext_failed,
            item, sub, run_on, tolerate, timer, nth)),
specs AS (INSERT INTO node_spec (node_no, item) SELECT no, item FROM want)
INSERT INTO node (dag_no, no, key, item_id, state, topic, trigger, pass_outputs, fingerprint, enqueued,
    up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed, sub, run_on,
    tolerate, timer)
SELECT $1, no, key, item_id, 'blocked', topic, trigger, pass, fingerprint, enqueued, l, o, f, s, c, ext_left, ext_failed,
    sub, run_on, tolerate, timer
FROM want;

-- name: mark_ended(dag_nos, keys, generations, states, outputs, errors, attempts, started_ats, workers)
-- Completions: only the living generation's, only once. The reason that a caller gave with a cancel stays.
WITH found AS MATERIALIZED (
    SELECT n.tid, n.was, w.state, w.output, w.error, w.attempts, w.started_at, w.worker
    FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::int[],
        $8::timestamptz[], $9::text[])
        AS w(dag_no, key, generation, state, output, error, attempts, started_at, worker)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, state AS was FROM node
        WHERE dag_no = w.dag_no AND key = w.key AND generation = w.generation
            AND state IN ('blocked', 'released') OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET state = f.state, output = f.output, attempts = f.attempts,
    error = CASE WHEN f.state = 'cancelled' THEN coalesce(node.error, f.error) ELSE f.error END,
    started_at = f.started_at, worker = f.worker, finished_at = shard_now()
FROM found f WHERE node.ctid = f.tid
RETURNING node.dag_no, node.no, node.generation, f.was, node.state, node.run_on, node.tolerate;

-- name: mark_refs(nos, generations, state, errors)
-- The same by number: confirmed cancels, and items that the queue will never take.
WITH found AS MATERIALIZED (
    SELECT n.tid, n.was, w.error
    FROM unnest($1::bigint[], $2::int[], $4::text[]) AS w(no, generation, error)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, state AS was FROM node
        WHERE no = w.no AND generation = w.generation AND state IN ('blocked', 'released') OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET state = $3, finished_at = shard_now(),
    error = CASE WHEN $3 = 'cancelled' THEN coalesce(node.error, f.error) ELSE coalesce(f.error, node.error) END
FROM found f WHERE node.ctid = f.tid
RETURNING node.dag_no, node.no, node.generation, f.was, node.state, node.run_on, node.tolerate;

-- name: count_late(nos, lefts, oks, faileds, skippeds, cancelleds)
-- New edges into nodes that were there before.
WITH found AS MATERIALIZED (
    SELECT n.tid, w.*
    FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[]) AS w(no, l, o, f, s, c)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = w.no OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET up_left = up_left + w.l, up_ok = up_ok + w.o, up_failed = up_failed + w.f,
    up_skipped = up_skipped + w.s, up_cancelled = up_cancelled + w.c
FROM found w WHERE node.ctid = w.tid
RETURNING {node_columns:node};

-- name: count_resolved(dag_no, keys, counts, faileds)
-- Externals of these nodes that were declared and have just been resolved.
WITH found AS MATERIALIZED (
    SELECT n.tid, w.resolved, w.failed
    FROM unnest($2::text[], $3::int[], $4::boolean[]) AS w(key, resolved, failed)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE dag_no = $1 AND key = w.key OFFSET 0) AS n
    LIMIT cardinality($2::text[]))
UPDATE node SET ext_left = ext_left - f.resolved, ext_failed = ext_failed OR f.failed
FROM found f WHERE node.ctid = f.tid
RETURNING {node_columns:node};

-- name: skip_by_call(nos)
-- A node that a caller skipped stays skipped when what is above it is retried.
UPDATE node SET by_call = true WHERE no = ANY($1::bigint[]);

-- name: rename_items(nos, item_ids)
WITH found AS MATERIALIZED (
    SELECT n.tid, w.item_id
    FROM unnest($1::bigint[], $2::uuid[]) AS w(no, item_id)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE no = w.no OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET item_id = f.item_id FROM found f WHERE node.ctid = f.tid;

-- name: cancel_by_call(nos, reason)
-- The same of one that a caller cancelled; released ones are cancelled when the queue says so.
UPDATE node SET by_call = true, error = coalesce($2, error) WHERE no = ANY($1::bigint[]);

-- name: renew_waiting(nos, old_item_ids, item_ids)
-- New ids for items that the queue has never seen and will not take under their ids.
WITH found AS MATERIALIZED (
    SELECT n.tid, w.item_id
    FROM unnest($1::bigint[], $2::uuid[], $3::uuid[]) AS w(no, old_item_id, item_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM node
        WHERE no = w.no AND state = 'blocked' AND enqueued AND node.item_id = w.old_item_id OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET item_id = f.item_id FROM found f WHERE node.ctid = f.tid;

-- name: renew_released(no, generation, item_id)
-- A released node whose item the queue has lost gets another, in a new generation; not one to be cancelled.
UPDATE node SET generation = generation + 1, item_id = $3, enqueued = false
WHERE no = $1 AND generation = $2 AND state = 'released' AND NOT EXISTS (
    SELECT FROM outbox WHERE node_no = $1 AND generation = $2 AND action = 'cancel')
RETURNING no;

-- name: items(nos)
-- What an enqueue needs to know.
SELECT w.no, d.id, n.key, s.item, d.started_lift, d.path_lift, d.structure_version, d.started
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = w.no OFFSET 0) AS s
CROSS JOIN LATERAL (SELECT dag_no, key FROM node WHERE no = w.no OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT id::text, started_lift, path_lift, structure_version,
        depth > 0 OR succeeded + failed + skipped + cancelled > 0 AS started
    FROM dag WHERE no = n.dag_no OFFSET 0) AS d;

-- name: waiting_items(first_no, last_no, bytes_max)
-- The nodes of an add that the queue may not have been given, with their items: as many as come before these take so
-- many bytes together, and one.
SELECT no, key, item_id, generation, item FROM (
    SELECT n.*, s.item, sum(octet_length(s.item)) OVER (ORDER BY n.no) AS bytes
    FROM (SELECT no, key, item_id::text, generation FROM node
          WHERE no BETWEEN $1 AND $2 AND state = 'blocked' AND enqueued ORDER BY no OFFSET 0) AS n
    CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = n.no OFFSET 0) AS s) AS sized
WHERE bytes - octet_length(item) < $3
ORDER BY no;

-- name: retry_roots(first_no, last_no, states, by_call_too)
SELECT no FROM node
WHERE no BETWEEN $1 AND $2 AND state = ANY($3::text[]) AND (state = 'failed' OR NOT by_call OR $4::boolean)
ORDER BY no;

-- name: retry_named(dag_no, keys)
SELECT n.key, n.no, n.state, n.by_call FROM unnest($2::text[]) AS w(key)
CROSS JOIN LATERAL (SELECT key, no, state, by_call FROM node WHERE dag_no = $1 AND key = w.key OFFSET 0) AS n;

-- name: retry_nodes(nos, item_ids)
-- A new generation, blocked until it is decided; returns what it replaces. A sub-DAG that failed is kept, to go on.
WITH old AS MATERIALIZED (
    SELECT n.*, w.item_id AS new_id
    FROM unnest($1::bigint[], $2::uuid[]) AS w(no, item_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, state AS was, generation AS was_generation, item_id::text AS was_item_id,
            enqueued OR released_at IS NOT NULL AS made, sub AND state = 'failed' AS kept
        FROM node WHERE no = w.no OFFSET 0) AS n
    LIMIT cardinality($1::bigint[]))
UPDATE node SET state = 'blocked', generation = node.generation + 1,
    item_id = CASE WHEN old.kept THEN node.item_id ELSE old.new_id END, enqueued = false,
    by_call = false, attempts = 0, released_at = NULL, started_at = NULL, finished_at = NULL, worker = NULL,
    output = NULL, error = NULL
FROM old WHERE node.ctid = old.tid
RETURNING node.no, old.was, old.was_generation, old.was_item_id, old.made, node.sub, node.run_on, node.tolerate,
    node.timer;

-- name: node_specs(nos)
SELECT s.node_no, s.item FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT node_no, item FROM node_spec WHERE node_no = w.no OFFSET 0) AS s;

-- name: set_specs(nos, items)
WITH found AS MATERIALIZED (
    SELECT s.tid, w.item FROM unnest($1::bigint[], $2::text[]) AS w(no, item)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node_spec WHERE node_no = w.no OFFSET 0) AS s
    LIMIT cardinality($1::bigint[]))
UPDATE node_spec SET item = f.item FROM found f WHERE node_spec.ctid = f.tid;

-- name: retry_externals(dag_no, nos, since)
-- What was resolved as failed is to be resolved again, but for what was resolved after `since`, when there is one;
-- deadlines count anew.
WITH undone AS (
    UPDATE external SET resolved_at = NULL, failed = false, data = NULL, reason = NULL,
        deadline_at = shard_now() + make_interval(secs => deadline_s)
    WHERE failed AND ctid = ANY(ARRAY(
        SELECT x.ctid FROM unnest($2::bigint[]) AS w(no)
        CROSS JOIN LATERAL (SELECT key FROM node WHERE no = w.no OFFSET 0) AS n
        CROSS JOIN LATERAL (
            SELECT ctid FROM external WHERE dag_no = $1 AND node_key = n.key AND declared AND failed
                AND ($3::timestamptz IS NULL OR resolved_at <= $3) OFFSET 0) AS x))
    RETURNING node_key),
renewed AS (
    UPDATE external SET deadline_at = shard_now() + make_interval(secs => deadline_s)
    WHERE resolved_at IS NULL AND ctid = ANY(ARRAY(
        SELECT x.ctid FROM unnest($2::bigint[]) AS w(no)
        CROSS JOIN LATERAL (SELECT key FROM node WHERE no = w.no OFFSET 0) AS n
        CROSS JOIN LATERAL (
            SELECT ctid FROM external WHERE dag_no = $1 AND node_key = n.key
                AND resolved_at IS NULL AND deadline_s IS NOT NULL OFFSET 0) AS x))),
counted AS MATERIALIZED (
    SELECT n.tid, u.undone, x.failed
    FROM (SELECT node_key, count(*)::int AS undone FROM undone GROUP BY node_key) AS u
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM node WHERE dag_no = $1 AND key = u.node_key OFFSET 0) AS n
    CROSS JOIN LATERAL (
        SELECT $3 IS NOT NULL AND EXISTS (
            SELECT FROM external WHERE dag_no = $1 AND node_key = u.node_key AND declared AND failed
                AND resolved_at > $3) AS failed) AS x
    LIMIT cardinality($2::bigint[]))
UPDATE node SET ext_left = ext_left + counted.undone, ext_failed = counted.failed
FROM counted WHERE node.ctid = counted.tid;

-- name: inputs_sizes(nos)
-- How much the upstreams and externals of a node would pass on. `octet_length` does not fetch the values.
SELECT w.no, coalesce(u.bytes, 0) + coalesce(x.bytes, 0) AS bytes
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (
    SELECT sum(octet_length(n.output) + octet_length(n.key) + 4) AS bytes
    FROM edge CROSS JOIN LATERAL (
        SELECT key, output FROM node WHERE no = edge.up AND state = 'succeeded' OFFSET 0) AS n
    WHERE edge.down = w.no) AS u
CROSS JOIN LATERAL (
    SELECT sum(octet_length(f.data) + octet_length(f.name) + 13) AS bytes
    FROM node CROSS JOIN LATERAL (
        SELECT name, data FROM external
        WHERE dag_no = node.dag_no AND node_key = node.key AND resolved_at IS NOT NULL OFFSET 0) AS f
    WHERE node.no = w.no) AS x;

-- name: inputs(nos)
SELECT w.no, u.key AS name, u.output AS value
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT up FROM edge WHERE down = w.no ORDER BY up OFFSET 0) AS e
CROSS JOIN LATERAL (
    SELECT key, output FROM node WHERE no = e.up AND state = 'succeeded' AND output IS NOT NULL OFFSET 0) AS u
UNION ALL
SELECT w.no, 'external:' || x.name, x.data
FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT dag_no, key FROM node WHERE no = w.no OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT name, data FROM external
    WHERE dag_no = n.dag_no AND node_key = n.key AND resolved_at IS NOT NULL AND data IS NOT NULL OFFSET 0) AS x;
