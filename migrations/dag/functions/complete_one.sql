-- As `complete_here` for the end of one node that has succeeded, of a DAG whose row the caller has locked, with one node
-- below it at most: a step of a chain, one in the middle of a fan, a job. It reads in one statement and writes in another,
-- without the parts that tell many DAGs and nodes apart, whose setting up is most of what one node costs there. False where
-- that is not so, or where it is not decided here at all; then nothing is written, and `complete_here` goes on.
CREATE OR REPLACE FUNCTION complete_one(
    of_dag bigint, of_key text, of_generation int, of_item uuid, attempt_number int, of_output text,
    since timestamptz, by_worker text, tail text, may_end boolean,
    OUT o_is_taken boolean, OUT o_released uuid, OUT o_inputs text, OUT o_ended uuid)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    step record;
    edges int := 0;
    fires boolean := false;
    final_state text;
    written int;
BEGIN
    o_is_taken := false;
    FOR step IN
        SELECT ending.no, dags.*, below.* FROM (
            SELECT node.no FROM node
            WHERE node.dag_no = of_dag AND node.key = of_key AND node.generation = of_generation
                AND node.state = 'released' AND node.item_id = of_item AND NOT node.sub AND node.run_on IS NULL
            OFFSET 0) AS ending
        CROSS JOIN (
            SELECT dag.id, dag.blocked + dag.released AS unfinished, dag.cleanup_left, dag.last_event, dag.open,
                dag.failed > dag.tolerated AS has_failed, dag.parent_dag
            FROM dag WHERE dag.no = of_dag OFFSET 0) AS dags
        LEFT JOIN LATERAL (
            SELECT edge.down, child.* FROM edge
            CROSS JOIN LATERAL (
                SELECT node.key, node.item_id, node.state, node.generation, node.enqueued, node.sub, node.run_on,
                    node.pass_outputs, node.ext_left, node.ext_failed,
                    verdict(node.trigger, node.up_left - 1, node.up_ok + 1, node.up_failed, node.up_skipped,
                        node.up_cancelled) AS says
                FROM node WHERE node.no = edge.down OFFSET 0) AS child
            WHERE edge.up = ending.no AND NOT edge.satisfied LIMIT 2) AS below ON true
    LOOP
        edges := edges + 1;
    END LOOP;
    IF edges <> 1 OR step.unfinished - 1 <= step.cleanup_left AND NOT (
        step.open OR may_end AND step.cleanup_left = 0 AND step.parent_dag IS NULL)
    THEN
        RETURN;
    END IF;
    -- As `nodes_below` of `complete_here` has it.
    IF step.down IS NOT NULL AND step.state = 'blocked' AND step.run_on IS NULL THEN
        IF step.ext_failed OR step.says = 'skip' THEN
            RETURN;
        END IF;
        fires := step.says = 'fire' AND step.ext_left = 0;
        IF fires AND (NOT step.enqueued OR step.sub OR right(step.item_id::text, 3) <> tail) THEN
            RETURN;
        END IF;
        IF fires AND step.pass_outputs THEN
            o_inputs := gather_inputs(
                step.down, of_dag, step.key, ARRAY[step.id], ARRAY[of_key], ARRAY[of_output], 1);
            IF o_inputs IS NULL THEN
                RETURN;
            END IF;
        END IF;
    END IF;
    IF step.unfinished = 1 AND NOT step.open THEN
        final_state := CASE WHEN step.has_failed THEN 'failed' ELSE 'succeeded' END;
    END IF;
    WITH ended AS (
        UPDATE node SET state = 'succeeded', output = of_output, error = NULL,
            attempts = coalesce(attempt_number, node.attempts), started_at = since, worker = by_worker,
            finished_at = shard_now()
        WHERE node.no = step.no RETURNING 1),
    below AS (
        UPDATE node SET state = CASE WHEN fires THEN 'released' ELSE node.state END,
            released_at = CASE WHEN fires THEN shard_now() ELSE node.released_at END,
            finished_at = CASE WHEN fires THEN NULL ELSE node.finished_at END,
            up_left = node.up_left - 1, up_ok = node.up_ok + 1
        WHERE node.no = step.down RETURNING 1),
    flipped AS (
        UPDATE edge SET satisfied = true WHERE edge.up = step.no AND edge.down = step.down RETURNING 1),
    logged AS (
        INSERT INTO change (dag_no, last_event, nodes, dag)
        VALUES (of_dag, step.last_event + 1 + fires::int + (final_state IS NOT NULL)::int,
            (step.no & 4194303) || ':succeeded' || CASE WHEN of_generation = 1 THEN '' ELSE '#' || of_generation END
                || CASE WHEN fires THEN ' ' || (step.down & 4194303) || ':released'
                    || CASE WHEN step.generation = 1 THEN '' ELSE '#' || step.generation END ELSE '' END,
            '{"state": "' || final_state || '", "open": false, "held": false, "paused": false}')),
    counted AS (
        UPDATE dag SET released = dag.released - 1 + fires::int, succeeded = dag.succeeded + 1,
            blocked = dag.blocked - fires::int,
            last_event = step.last_event + 1 + fires::int + (final_state IS NOT NULL)::int,
            state = coalesce(final_state, dag.state),
            finished_at = CASE WHEN final_state IS NULL THEN dag.finished_at ELSE shard_now() END
        WHERE dag.no = of_dag RETURNING 1)
    SELECT count(*) INTO written FROM (
        TABLE ended UNION ALL TABLE below UNION ALL TABLE flipped UNION ALL TABLE counted) AS rows;
    IF written <> 2 + 2 * (step.down IS NOT NULL)::int THEN
        RAISE EXCEPTION 'a row of DAG % was written without its lock', step.id;
    END IF;
    o_is_taken := true;
    IF fires THEN
        o_released := step.item_id;
    END IF;
    IF final_state IS NOT NULL THEN
        o_ended := step.id;
        INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled)
        SELECT dag.state, 1, dag.succeeded, dag.failed, dag.skipped, dag.cancelled FROM dag WHERE dag.no = of_dag;
    END IF;
END $$;
