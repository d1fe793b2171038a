-- What people and programs ask; no locks.

-- columns: shown_columns
no, key, item_id::text, state, generation, topic, trigger, attempts, output, error, created_at, released_at, started_at,
finished_at, worker, up_left + up_ok + up_failed + up_skipped + up_cancelled AS upstreams, sub, run_on, tolerate, timer

-- name: node_by_key(dag_no, key)
SELECT {shown_columns}, 0::bigint AS bytes
FROM node WHERE dag_no = $1 AND key = $2;

-- name: nodes_page(after_no, last_no, rows_max, bytes_max)
-- As many as come before the rows take so many bytes together, and one; `bytes` is what they take up to this one.
SELECT * FROM (
    SELECT page.*, sum(octet_length(key) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0))
        OVER (ORDER BY no) AS bytes
    FROM (
        SELECT {shown_columns}
        FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $3) AS page) AS sized
WHERE bytes - octet_length(key) - coalesce(octet_length(output), 0) - coalesce(octet_length(error), 0) < $4
ORDER BY no;

-- name: nodes_page_by_state(states, after_no, last_no, rows_max, bytes_max)
SELECT * FROM (
    SELECT page.*, sum(octet_length(key) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0))
        OVER (ORDER BY no) AS bytes
    FROM (
        SELECT {shown_columns}
        FROM node WHERE no > $2 AND no <= $3 AND state = ANY($1::text[]) ORDER BY no LIMIT $4) AS page) AS sized
WHERE bytes - octet_length(key) - coalesce(octet_length(output), 0) - coalesce(octet_length(error), 0) < $5
ORDER BY no;

-- name: upstreams_of(nos, bytes_max)
-- In the order of the nodes, ascending, as many as come before the rows take so many bytes together, and one.
SELECT no, key, state, satisfied, since, bytes FROM (
    SELECT e.down AS no, u.key, u.state, e.satisfied, coalesce(u.released_at, u.created_at) AS since, e.up,
        sum(octet_length(u.key) + 64) OVER (ORDER BY e.down, e.up) AS bytes
    FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT up, down, satisfied FROM edge WHERE down = w.no OFFSET 0) AS e
    CROSS JOIN LATERAL (SELECT key, state, created_at, released_at FROM node WHERE no = e.up OFFSET 0) AS u) AS sized
WHERE bytes - octet_length(key) - 64 < $2
ORDER BY no, up;

-- name: downstreams_of(nos, bytes_max)
-- The same.
SELECT no, key, bytes FROM (
    SELECT e.up AS no, c.key, e.down, sum(octet_length(c.key) + 64) OVER (ORDER BY e.up, e.down) AS bytes
    FROM unnest($1::bigint[]) AS w(no)
    CROSS JOIN LATERAL (SELECT up, down FROM edge WHERE up = w.no OFFSET 0) AS e
    CROSS JOIN LATERAL (SELECT key FROM node WHERE no = e.down OFFSET 0) AS c) AS sized
WHERE bytes - octet_length(key) - 64 < $2
ORDER BY no, down;

-- name: externals_of(dag_no, keys, bytes_max)
-- The same, in the order of the keys.
SELECT node_key, name, resolved, failed, reason, deadline_at, bytes FROM (
    SELECT x.*, w.nth, sum(octet_length(x.name) + 128) OVER (ORDER BY w.nth, x.name) AS bytes
    FROM unnest($2::text[]) WITH ORDINALITY AS w(key, nth)
    CROSS JOIN LATERAL (
        SELECT node_key, name, resolved_at IS NOT NULL AS resolved, failed, reason, deadline_at FROM external
        WHERE dag_no = $1 AND node_key = w.key AND declared OFFSET 0) AS x) AS sized
WHERE bytes - octet_length(name) - 128 < $3
ORDER BY nth, name;

-- name: declared_names(dag_no, keys, rows_max)
-- Some of the externals that these nodes have declared.
SELECT x.* FROM unnest($2::text[]) AS w(key)
CROSS JOIN LATERAL (
    SELECT node_key, name FROM external WHERE dag_no = $1 AND node_key = w.key AND declared
    ORDER BY name LIMIT $3) AS x;

-- name: undeclared(dag_nos, rows_max)
-- Events of each DAG that were resolved and that no node waits for.
SELECT x.* FROM unnest($1::bigint[]) AS w(dag_no)
CROSS JOIN LATERAL (
    SELECT dag_no, node_key, name FROM external WHERE dag_no = w.dag_no AND NOT declared
    ORDER BY node_key, name LIMIT $2) AS x;

-- name: graph_nodes(after_no, last_no, rows_max)
SELECT no, key, item_id::text, state, topic, generation, sub FROM node WHERE no > $1 AND no <= $2 ORDER BY no LIMIT $3;

-- name: changes_after(dag_no, after, rows_max)
-- The log of a DAG from the row that holds the change after `after`.
SELECT last_event, at, nodes, dag FROM change WHERE dag_no = $1 AND last_event > $2 ORDER BY last_event LIMIT $3;

-- name: node_keys(nos)
SELECT n.no, n.key FROM unnest($1::bigint[]) AS w(no)
CROSS JOIN LATERAL (SELECT no, key FROM node WHERE no = w.no OFFSET 0) AS n;

-- name: heads(ids)
-- How far DAGs have come.
SELECT d.id::text, d.last_event, d.state FROM unnest($1::uuid[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT id, coalesce(ends_as, state) AS state, last_event + CASE WHEN workflow IS NULL THEN 0 ELSE (
        SELECT run.last_event FROM run WHERE run.dag_no = dag.no) END AS last_event
    FROM dag WHERE id = w.id OFFSET 0) AS d;

-- name: namespace_use(namespace)
-- The DAGs of a namespace that have not ended, and what they hold; asked only where that is limited. A range and
-- an order make `dag_listed_by_state` the only index that serves: the others would walk all the DAGs that ended.
SELECT count(*) AS dags, coalesce(sum(d.next_n), 0)::bigint AS nodes, coalesce(sum(d.edges), 0)::bigint AS edges
FROM unnest(ARRAY['running', 'cancelling']) AS w(state)
CROSS JOIN LATERAL (
    SELECT next_n, edges FROM dag WHERE namespace = $1::text AND state >= w.state AND state <= w.state
    ORDER BY state, id OFFSET 0) AS d;

-- name: quotas()
-- The namespaces that were given quotas of their own.
SELECT namespace, dags_max, nodes_max, edges_max, updated_at FROM quota;

-- name: set_quota(namespace, dags_max, nodes_max, edges_max)
INSERT INTO quota (namespace, dags_max, nodes_max, edges_max) VALUES ($1, $2, $3, $4)
ON CONFLICT (namespace) DO UPDATE SET dags_max = excluded.dags_max, nodes_max = excluded.nodes_max,
    edges_max = excluded.edges_max, updated_at = shard_now();
