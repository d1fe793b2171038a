-- What `complete_here` does for runs of workflows; called by it, with its arrays, and with the numbers of the runs whose
-- rows it has locked (NULL: none).
--
-- Ends of tasks are told to the run's code as events; a decider that is parked is released, in its generation, by an
-- item that the queue makes in the same transaction (`o_made`, as JSON); of runs whose decider is not parked the caller
-- tells who follows them (`o_awake`). Ends of items of deciders whose generation is over are taken too, and change
-- nothing: only a turn ends one. A run's own end is never decided here, since its decider ends it. What is not taken goes
-- the ordinary way: what is not the end of a task's living generation; all ends of a run that was reset, some of whose
-- tasks code is not told of; all of one whose decider cannot be released by an item on that queue shard whose id is young
-- enough (`id_age_max`).
CREATE OR REPLACE FUNCTION tell_runs_here(
    run_nos bigint[], dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[],
    outputs text[], started_ats timestamptz[], workers text[], queue_shard int, OUT o_taken uuid[], OUT o_made text[],
    OUT o_awake uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    row_max CONSTANT int := 100;        -- as of `complete_here`
    -- A quarter of the time for which the queue remembers ends, as `services.dag.run.decisions` has it.
    id_age_max CONSTANT float8 := 225;
    tail CONSTANT text := lpad(to_hex(queue_shard), 3, '0');
    ended uuid[];
BEGIN
    -- Generations only grow, so what is over stays so, whoever has the DAG's row.
    SELECT array_agg(u.item_id) INTO o_taken
    FROM unnest(dag_ids, node_keys, generations, item_ids) AS u(dag_id, key, generation, item_id)
    CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = u.dag_id AND dag.workflow IS NOT NULL OFFSET 0) AS d
    CROSS JOIN LATERAL (SELECT node.generation, node.state FROM node WHERE node.no = d.no << 22 OFFSET 0) AS n
    WHERE u.key = 'decider' AND (n.generation > u.generation
        OR n.generation = u.generation AND n.state NOT IN ('blocked', 'released'));
    IF run_nos IS NULL THEN
        RETURN;
    END IF;
    LOCK TABLE event, run IN ROW EXCLUSIVE MODE NOWAIT;
    WITH ending AS MATERIALIZED (
        SELECT d.no AS dag_no, u.key, u.generation, u.attempts, u.output, u.started_at, u.worker, u.nth, x.place, x.no
        FROM unnest(run_nos) AS w(no)
        CROSS JOIN LATERAL (SELECT dag.no, dag.id FROM dag WHERE dag.no = w.no OFFSET 0) AS d
        JOIN unnest(dag_ids, node_keys, generations, item_ids, attempt_numbers, outputs, started_ats, workers)
            WITH ORDINALITY AS u(dag_id, key, generation, item_id, attempts, output, started_at, worker, nth)
            ON u.dag_id = d.id AND u.key <> 'decider' AND u.output NOT LIKE '%\\u%' IS NOT FALSE
        CROSS JOIN LATERAL (
            SELECT ctid AS place, node.no FROM node
            WHERE node.dag_no = d.no AND node.key = u.key AND node.generation = u.generation
                AND node.state = 'released' AND node.item_id = u.item_id AND NOT node.sub AND node.run_on IS NULL
            OFFSET 0) AS x
        WHERE NOT EXISTS (SELECT FROM edge WHERE edge.up = x.no AND NOT edge.satisfied)),
    runs AS MATERIALIZED (
        SELECT k.*, d.*, r.*, n.*, n.is_parked::int AS wakes
        FROM (
            SELECT ending.dag_no, count(*)::int AS ends,
                array_agg((ending.no & 4194303) || ':succeeded'
                    || CASE WHEN ending.generation = 1 THEN '' ELSE '#' || ending.generation END
                    ORDER BY ending.nth) AS news
            FROM ending GROUP BY ending.dag_no) AS k
        CROSS JOIN LATERAL (
            SELECT ctid AS place, dag.id, dag.namespace, dag.last_event AS last_change,
                dag.started_lift = 0 AND dag.path_lift = 0 AS keeps_priority
            FROM dag WHERE dag.no = k.dag_no OFFSET 0) AS d
        CROSS JOIN LATERAL (
            SELECT ctid AS run_place, run.last_event, run.state AS run_state, run.resets FROM run
            WHERE run.dag_no = k.dag_no OFFSET 0) AS r
        CROSS JOIN LATERAL (
            SELECT ctid AS decider_place, node.item_id, node.generation, node.state = 'blocked' AS is_parked,
                (SELECT node_spec.item FROM node_spec WHERE node_spec.node_no = node.no) AS item,
                ('x' || left(node.item_id::text, 8) || substr(node.item_id::text, 10, 4))::bit(48)::bigint
                    > (extract(epoch FROM shard_now()) - id_age_max) * 1000 AS is_young
            FROM node WHERE node.no = k.dag_no << 22 OFFSET 0) AS n
        WHERE r.run_state = 'running' AND r.resets = 0
            AND (NOT n.is_parked OR n.is_young AND d.keeps_priority AND right(n.item_id::text, 3) = tail)),
    written AS (
        UPDATE node SET state = 'succeeded', output = ending.output, error = NULL,
            attempts = coalesce(ending.attempts, node.attempts), started_at = ending.started_at,
            worker = ending.worker, finished_at = shard_now()
        FROM ending JOIN runs ON runs.dag_no = ending.dag_no WHERE node.ctid = ending.place
        RETURNING node.item_id),
    released AS (
        UPDATE node SET state = 'released', released_at = shard_now(), finished_at = NULL
        FROM runs WHERE runs.is_parked AND node.ctid = runs.decider_place),
    told AS (
        INSERT INTO event (dag_no, event, kind, key, generation, state, output)
        SELECT ending.dag_no, runs.last_event + row_number() OVER (PARTITION BY ending.dag_no ORDER BY ending.nth),
            'item', ending.key, ending.generation, 'succeeded', ending.output
        FROM ending JOIN runs ON runs.dag_no = ending.dag_no),
    noted AS (
        UPDATE run SET last_event = runs.last_event + runs.ends, last_told = runs.last_event + runs.ends
        FROM runs WHERE run.ctid = runs.run_place),
    logged AS (
        INSERT INTO change (dag_no, last_event, nodes)
        SELECT runs.dag_no, runs.last_change + least(i + row_max - 1, runs.ends + runs.wakes),
            array_to_string(x.news[i : i + row_max - 1], ' ')
        FROM runs
        CROSS JOIN LATERAL (
            SELECT runs.news || CASE WHEN runs.is_parked THEN ARRAY['0:released'
                || CASE WHEN runs.generation = 1 THEN '' ELSE '#' || runs.generation END] END AS news OFFSET 0) AS x
        CROSS JOIN LATERAL generate_series(1, runs.ends + runs.wakes, row_max) AS i),
    counted AS (
        UPDATE dag SET released = dag.released - runs.ends + runs.wakes, succeeded = dag.succeeded + runs.ends,
            blocked = dag.blocked - runs.wakes, last_event = runs.last_change + runs.ends + runs.wakes
        FROM runs WHERE dag.ctid = runs.place)
    SELECT (SELECT array_agg(written.item_id) FROM written),
        array_agg(left(runs.item, -1) || ',"namespace":' || to_json(runs.namespace) || ',"id":"' || runs.item_id
            || '","ack_context":{"dag":"' || runs.id || '","node":"decider","generation":' || runs.generation || '}}')
            FILTER (WHERE runs.is_parked),
        array_agg(runs.id) FILTER (WHERE NOT runs.is_parked)
    INTO ended, o_made, o_awake
    FROM runs;
    o_taken := o_taken || ended;
END $$;
