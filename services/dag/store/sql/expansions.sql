-- Blocks about nodes that have expanded themselves. All run under the lock of the DAG's row.

-- name: insert_expansion(node_no, child_nos)
INSERT INTO expansion (node_no, child_no) SELECT $1, w.no FROM unnest($2::bigint[]) AS w(no);

-- name: descendants(nos)
-- Children of these nodes, and of their children, however deep.
WITH RECURSIVE below(root, no) AS (
    SELECT w.no, w.no FROM unnest($1::bigint[]) AS w(no)
    UNION
    SELECT below.root, c.child_no FROM below CROSS JOIN LATERAL (
        SELECT child_no FROM expansion WHERE node_no = below.no OFFSET 0) AS c)
SELECT b.root, n.* FROM below AS b CROSS JOIN LATERAL (
    SELECT {node_columns}
    FROM node WHERE no = b.no AND no <> b.root OFFSET 0) AS n;

-- name: downstream_nodes(no)
SELECT n.* FROM (SELECT down FROM edge WHERE up = $1 ORDER BY down OFFSET 0) AS e CROSS JOIN LATERAL (
    SELECT {node_columns}
    FROM node WHERE no = e.down OFFSET 0) AS n;
