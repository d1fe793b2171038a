-- Blocks about DAGs that run in the place of nodes.

-- name: sub_node(no)
-- A node in whose place a DAG runs, with what that DAG is made of.
SELECT n.key, n.generation, n.state, d.id::text AS dag_id, d.namespace, d.depth, s.item, d.started_lift, d.path_lift
FROM (SELECT no, dag_no, key, generation, state FROM node WHERE no = $1 OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT id, namespace, depth, started_lift, path_lift FROM dag WHERE no = n.dag_no OFFSET 0) AS d
CROSS JOIN LATERAL (SELECT item FROM node_spec WHERE node_no = n.no OFFSET 0) AS s;

-- name: adopt(no, parent_dag, parent_node, parent_generation, depth)
-- A DAG runs for this generation of a node from now on; an end that it has had is told anew.
UPDATE dag SET parent_dag = $2, parent_node = $3, parent_generation = $4, depth = $5, endings = endings + 1
WHERE no = $1
RETURNING endings;

-- name: node_of_child(dag_no, key)
SELECT no, key, item_id::text, state, generation, by_call FROM node WHERE dag_no = $1 AND key = $2 AND sub;

-- name: set_generation(no, generation)
UPDATE node SET generation = $2 WHERE no = $1;

-- name: note_retry(node_no, generation, retry)
UPDATE outbox SET retry = $3 WHERE node_no = $1 AND generation = $2 AND action = 'start';

-- name: dag_by_no(no)
SELECT {dag_columns}
FROM dag WHERE no = $1;

-- name: outputs_page(after_no, last_no, rows_max, bytes_max)
-- Outputs of nodes that nothing waits for: what a DAG has come to. As many as come before they take so many bytes
-- together, and one.
SELECT no, key, output, bytes FROM (
SELECT page.*, sum(octet_length(output) + octet_length(key)) OVER (ORDER BY no) AS bytes FROM (
SELECT n.no, n.key, n.output
FROM (SELECT no, key, output FROM node
      WHERE no > $1 AND no <= $2 AND state = 'succeeded' AND output IS NOT NULL AND run_on IS NULL
      ORDER BY no OFFSET 0) AS n
LEFT JOIN LATERAL (
    SELECT true AS any FROM edge
    CROSS JOIN LATERAL (SELECT FROM node WHERE no = edge.down AND run_on IS NULL OFFSET 0) AS c
    WHERE edge.up = n.no LIMIT 1) AS down ON true
WHERE down.any IS NULL
ORDER BY n.no LIMIT $3) AS page) AS sized
WHERE bytes - octet_length(output) - octet_length(key) < $4
ORDER BY no;
