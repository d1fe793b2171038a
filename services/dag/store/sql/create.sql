-- Whole new DAGs, several in one statement, and more nodes of one; all decided as they are written.

-- name: insert_dags(ids, namespaces, keys, names, opens, helds, on_failures, deadlines_s, metadatas, started_lifts, path_lifts, next_ns, edge_counts, blockeds, releaseds, last_events, nos, node_keys, item_ids, topics, triggers, passes, fingerprints, lefts, items, ups, downs, change_places, change_lasts, change_nodes, change_dags, delay_s, contents)
-- Changes name their DAG by its place among those of the call; numbers of nodes have that place where the DAG's
-- number will be. Texts of nodes come as lines, prints one after another. A DAG whose key is taken is left out with
-- all that is its own. Nothing here was there before, so there is nothing to lock or to look at.
WITH want AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[], $7::text[],
        $8::float8[], $9::text[], $10::int[], $11::int[], $12::int[], $13::int[], $14::int[], $15::int[], $16::bigint[],
        $33::bytea[])
        WITH ORDINALITY AS w(id, namespace, key, name, open, held, on_failure, deadline_s, metadata, started_lift,
            path_lift, next_n, edges, blocked, released, last_event, content, place)),
made AS MATERIALIZED (
    INSERT INTO dag (id, namespace, key, name, open, held, on_failure, deadline_s, metadata, deadline_at,
        started_lift, path_lift, next_n, edges, structure_version, blocked, released, last_event, content)
    SELECT id, namespace, key, name, open, held, on_failure, deadline_s, metadata,
        shard_now() + make_interval(secs => deadline_s), started_lift, path_lift, next_n, edges,
        least(edges, 1), blocked, released, last_event, content
    FROM want ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING no, id, created_at, deadline_at),
placed AS MATERIALIZED (
    SELECT array_agg(m.no ORDER BY w.place) AS nos,
        array_agg(w.released > 0 ORDER BY w.place) AS releasing,
        array_agg(w.started_lift > 0 OR w.path_lift > 0 ORDER BY w.place) AS lifted,
        array_agg(w.path_lift > 0 AND (w.open OR w.held) ORDER BY w.place) AS unranked
    FROM want w LEFT JOIN made m ON m.id = w.id),
node_rows AS MATERIALIZED (
    SELECT dag_no, (dag_no << 22) + (no & 4194303) AS no, key, item_id, topic, trigger, pass,
        substring($23::bytea FROM (nth::int - 1) * 16 + 1 FOR 16) AS fingerprint, l, item,
        l = 0 AND (SELECT releasing FROM placed)[no >> 22] AS released,
        (l > 0 OR NOT (SELECT releasing FROM placed)[no >> 22])
            AND (NOT (SELECT lifted FROM placed)[no >> 22]
                OR l > 0 AND NOT (SELECT unranked FROM placed)[no >> 22]) AS ahead,
        shard_now() AS at
    FROM (
        SELECT (SELECT nos FROM placed)[w.no >> 22] AS dag_no, w.*
        FROM unnest($17::bigint[], string_to_array($18::text, E'\n'), $19::uuid[],
            string_to_array($20::text, E'\n'), string_to_array($21::text, E'\n'), $22::boolean[], $24::int[],
            string_to_array($25::text, E'\n'))
            WITH ORDINALITY AS w(no, key, item_id, topic, trigger, pass, l, item, nth) OFFSET 0) AS n
    WHERE dag_no IS NOT NULL),
specs AS (INSERT INTO node_spec (node_no, item) SELECT no, item FROM node_rows),
created AS (
    INSERT INTO node (dag_no, no, key, item_id, state, topic, trigger, pass_outputs, fingerprint, enqueued,
        up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed, created_at, released_at)
    SELECT dag_no, no, key, item_id, CASE WHEN released THEN 'released' ELSE 'blocked' END, topic, trigger, pass,
        fingerprint, ahead, l, 0, 0, 0, 0, 0, false, at, CASE WHEN released THEN at END
    FROM node_rows),
linked AS (
    INSERT INTO edge (up, down, satisfied)
    SELECT (dag_no << 22) + (up & 4194303), (dag_no << 22) + (down & 4194303), false
    FROM (
        SELECT (SELECT nos FROM placed)[w.up >> 22] AS dag_no, w.up, w.down
        FROM unnest($26::bigint[], $27::bigint[]) AS w(up, down) OFFSET 0) AS n
    WHERE dag_no IS NOT NULL),
logged AS (
    INSERT INTO change (dag_no, last_event, nodes, dag)
    SELECT dag_no, last_event, nodes, dag
    FROM (
        SELECT (SELECT nos FROM placed)[w.place] AS dag_no, w.*
        FROM unnest($28::int[], $29::bigint[], $30::text[], $31::text[]) AS w(place, last_event, nodes, dag)
        OFFSET 0) AS n
    WHERE dag_no IS NOT NULL),
sent AS (
    INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
    SELECT no, 1, 'enqueue', item_id, CASE WHEN pass THEN '{}' END, shard_now(), shard_now() + make_interval(secs => $32::float8)
    FROM node_rows WHERE released),
waiting AS (
    INSERT INTO adding (first_no, last_no)
    SELECT min(no), max(no) FROM node_rows GROUP BY dag_no HAVING bool_or(ahead))
SELECT w.place::int, m.no, m.created_at, m.deadline_at FROM made m JOIN want w ON w.id = m.id;

-- name: insert_node_batch(dag_no, first_no, node_keys, item_ids, topics, triggers, passes, fingerprints, lefts, oks, items, releasing, ups, downs, flipped, next_n, edges, blocked, released, last_event, change_lasts, change_nodes, change_dags, delay_s)
-- More nodes of a DAG whose row is locked, with its totals as they stand then. Texts as above.
WITH node_rows AS MATERIALIZED (
    SELECT $2::bigint + nth - 1 AS no, key, item_id, topic, trigger, pass,
        substring($8::bytea FROM (nth::int - 1) * 16 + 1 FOR 16) AS fingerprint, l, ok, item,
        l = 0 AND $12::boolean AS released, shard_now() AS at
    FROM unnest(string_to_array($3::text, E'\n'), $4::uuid[], string_to_array($5::text, E'\n'),
        string_to_array($6::text, E'\n'), $7::boolean[], $9::int[], $10::int[], string_to_array($11::text, E'\n'))
        WITH ORDINALITY AS w(key, item_id, topic, trigger, pass, l, ok, item, nth)),
specs AS (INSERT INTO node_spec (node_no, item) SELECT no, item FROM node_rows),
created AS (
    INSERT INTO node (dag_no, no, key, item_id, state, topic, trigger, pass_outputs, fingerprint, enqueued,
        up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed, created_at, released_at)
    SELECT $1, no, key, item_id, CASE WHEN released THEN 'released' ELSE 'blocked' END, topic, trigger, pass,
        fingerprint, NOT released, l, ok, 0, 0, 0, 0, false, at, CASE WHEN released THEN at END
    FROM node_rows),
linked AS (
    INSERT INTO edge (up, down, satisfied)
    SELECT w.up, w.down, w.flipped FROM unnest($13::bigint[], $14::bigint[], $15::boolean[]) AS w(up, down, flipped)),
logged AS (
    INSERT INTO change (dag_no, last_event, nodes, dag)
    SELECT $1, w.last_event, w.nodes, w.dag
    FROM unnest($21::bigint[], $22::text[], $23::text[]) AS w(last_event, nodes, dag)),
sent AS (
    INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
    SELECT no, 1, 'enqueue', item_id, CASE WHEN pass THEN '{}' END, at, at + make_interval(secs => $24::float8)
    FROM node_rows WHERE released),
waiting AS (
    INSERT INTO adding (first_no, last_no) SELECT min(no), max(no) FROM node_rows HAVING bool_or(NOT released))
UPDATE dag SET next_n = $16, edges = $17, structure_version = structure_version + least(cardinality($13::bigint[]), 1),
    blocked = $18, released = $19, last_event = $20
WHERE no = $1;
