-- Blocks about retries that go in steps. All run under the lock of the DAG's row.

-- name: insert_reopening(dag_no, below, roots, by_call_too, cleanups, queue_shard)
INSERT INTO reopening (dag_no, stage, below, roots, by_call_too, cleanups, queue_shard, after_no)
VALUES ($1, 'named', $2, $3, $4, $5, $6, ($1::bigint << 22) - 1);

-- name: reopening_of(dag_no)
SELECT stage, below, roots, by_call_too, cleanups, queue_shard, after_no, started_at FROM reopening WHERE dag_no = $1;

-- name: advance_reopening(dag_no, stage, after_no)
UPDATE reopening SET stage = $2, after_no = $3 WHERE dag_no = $1;

-- name: drop_reopening(dag_no)
DELETE FROM reopening WHERE dag_no = $1;

-- name: clear_reach(dag_no)
DELETE FROM reach WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22;

-- name: insert_reach(node_nos)
INSERT INTO reach (node_no) SELECT unnest($1::bigint[])
ON CONFLICT (node_no) DO UPDATE SET after_down = excluded.after_down;

-- name: reach_of(dag_no, rows_max)
SELECT node_no, after_down FROM reach
WHERE node_no >= $1::bigint << 22 AND node_no < ($1::bigint + 1) << 22 ORDER BY node_no LIMIT $2;

-- name: edges_below(ups, after_downs, edges_max)
-- Edges that leave these nodes, from where the last step stopped, and whether their downstreams may run again.
SELECT e.up, e.down, n.state, n.by_call
FROM (SELECT w.up, c.down FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS w(up, after_down, i)
      CROSS JOIN LATERAL (
          SELECT down FROM edge WHERE edge.up = w.up AND down > w.after_down ORDER BY down LIMIT $3) AS c
      ORDER BY w.i, c.down LIMIT $3) AS e
CROSS JOIN LATERAL (SELECT state, by_call FROM node WHERE no = e.down OFFSET 0) AS n
ORDER BY e.up, e.down;

-- name: advance_reach(node_no, after_down)
UPDATE reach SET after_down = $2 WHERE node_no = $1;

-- name: delete_reach(node_nos)
DELETE FROM reach WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM unnest($1::bigint[]) AS w(node_no)
    CROSS JOIN LATERAL (SELECT ctid FROM reach WHERE node_no = w.node_no OFFSET 0) AS r));
