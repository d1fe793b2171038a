-- Whole new DAGs: several in one statement, each decided as it is written.

-- name: bear_dags(ids, namespaces, keys, names, opens, helds, on_failures, deadlines_s, metadatas, started_lifts, path_lifts, next_ns, edge_counts, blockeds, releaseds, last_events, node_places, node_ns, node_keys, item_ids, states, topics, triggers, passes, fingerprints, enqueueds, lefts, items, edge_places, ups, downs, change_places, change_lasts, change_nodes, change_dags, delay_s)
-- Rows of nodes, edges and changes name their DAG by its place among those of the call. A DAG whose key is taken is
-- left out with all that is its own. Nothing here was there before, so there is nothing to lock or to look at.
WITH want AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[], $7::text[],
        $8::float8[], $9::text[], $10::int[], $11::int[], $12::int[], $13::int[], $14::int[], $15::int[], $16::bigint[])
        WITH ORDINALITY AS w(id, namespace, key, name, open, held, on_failure, deadline_s, metadata, started_lift,
            path_lift, next_n, edges, blocked, released, last_event, place)),
made AS MATERIALIZED (
    INSERT INTO dag (id, namespace, key, name, open, held, on_failure, deadline_s, metadata, deadline_at,
        started_lift, path_lift, next_n, edges, structure_version, blocked, released, last_event)
    SELECT id, namespace, key, name, open, held, on_failure, deadline_s, metadata,
        shard_now() + make_interval(secs => deadline_s), started_lift, path_lift, next_n, edges,
        least(edges, 1), blocked, released, last_event
    FROM want ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING no, id, created_at, deadline_at),
placed AS MATERIALIZED (
    SELECT array_agg(m.no ORDER BY w.place) AS nos FROM want w LEFT JOIN made m ON m.id = w.id),
node_rows AS MATERIALIZED (
    SELECT n.dag_no, (n.dag_no << 22) + w.n AS no, w.key, w.item_id, w.state, w.topic, w.trigger, w.pass,
        w.fingerprint, w.enqueued, w.l, w.item, shard_now() AS at
    FROM unnest($17::int[], $18::int[], $19::text[], $20::uuid[], $21::text[], $22::text[], $23::text[],
        $24::boolean[], $25::bytea[], $26::boolean[], $27::int[], $28::text[])
        AS w(place, n, key, item_id, state, topic, trigger, pass, fingerprint, enqueued, l, item)
    CROSS JOIN LATERAL (SELECT (SELECT nos FROM placed)[w.place] AS dag_no OFFSET 0) AS n
    WHERE n.dag_no IS NOT NULL),
specs AS (INSERT INTO node_spec (node_no, item) SELECT no, item FROM node_rows),
born AS (
    INSERT INTO node (dag_no, no, key, item_id, state, topic, trigger, pass_outputs, fingerprint, enqueued,
        up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed, created_at, released_at)
    SELECT dag_no, no, key, item_id, state, topic, trigger, pass, fingerprint, enqueued, l, 0, 0, 0, 0, 0, false,
        at, CASE WHEN state = 'released' THEN at END
    FROM node_rows),
linked AS (
    INSERT INTO edge (up, down, satisfied)
    SELECT (n.dag_no << 22) + w.up, (n.dag_no << 22) + w.down, false
    FROM unnest($29::int[], $30::int[], $31::int[]) AS w(place, up, down)
    CROSS JOIN LATERAL (SELECT (SELECT nos FROM placed)[w.place] AS dag_no OFFSET 0) AS n
    WHERE n.dag_no IS NOT NULL),
logged AS (
    INSERT INTO change (dag_no, last_event, nodes, dag)
    SELECT n.dag_no, w.last_event, w.nodes, w.dag
    FROM unnest($32::int[], $33::bigint[], $34::text[], $35::text[]) AS w(place, last_event, nodes, dag)
    CROSS JOIN LATERAL (SELECT (SELECT nos FROM placed)[w.place] AS dag_no OFFSET 0) AS n
    WHERE n.dag_no IS NOT NULL),
sent AS (
    INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
    SELECT no, 1, 'enqueue', item_id, CASE WHEN pass THEN '{}' END, shard_now(), shard_now() + make_interval(secs => $36::float8)
    FROM node_rows WHERE state = 'released'),
waiting AS (
    INSERT INTO adding (first_no, last_no)
    SELECT min(no), max(no) FROM node_rows GROUP BY dag_no HAVING bool_or(enqueued))
SELECT w.place::int, m.no, m.created_at, m.deadline_at FROM made m JOIN want w ON w.id = m.id;
