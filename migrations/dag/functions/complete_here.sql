-- Applies ends of nodes' items where that is simple, for the queue shard that they end on and in its
-- transaction; called with this schema as the search_path. The arrays have one element an item: what its ack
-- context says, its id, its attempts, its output, and since when and by whom it was held; and of one that has failed
-- its error as JSON text (NULL: it was acked). One row says which
-- items' ends are applied here, which disabled items of that queue shard the caller has to make ready in the
-- same transaction, and which DAGs have ended: who waits for one hears of it from the caller, after its commit.
-- What is not in `o_taken` is as it was, and goes the ordinary way: by a completion item, to
-- services.dag.run.completions, which decides the same.
--
-- Else nobody is waited for: a DAG whose row is locked, or a table that is, is left alone. All that follows the locks
-- reads with a snapshot of its own. A DAG's ends are taken together or not at all, and only while it runs, neither
-- held nor paused, cleaning up nor being reopened; if each is the end of a released node in its living generation
-- with few edges left, and no failure that is tolerated or cancels its DAG; if every node that these decide is to be
-- released, has its item disabled on that shard and is given no outputs, or few and small ones and no external's data (`o_inputs`: those of each in `o_released`), and
-- these are not many. A DAG ends here only where `folds` says so (2), and where that
-- begins nothing: it has no parent, and nothing cleans up behind it. How many nodes may end is the caller's to
-- limit.
--
-- Runs of workflows are another matter: see `tell_runs_here`. Where something fails nothing of them is applied.
-- `o_made` are items that it has the caller make ready, `o_awake` runs whose code is awake and has something to be told.
--
-- What would release many nodes holds up all that shares its statement. `folds` says whether these are taken (4);
-- else `o_wide` names the items of DAGs that are left out for that reason alone. `folds` of 16: locked DAGs are
-- waited for, for 50 ms.
--
-- What it costs is for the most part what a statement of many parts costs before it has seen a row, so the parts
-- are as few as can be, and what few nodes need is a function of its own: see `gather_inputs`. For the same reason one
-- node with one below it at most, which is a step of a chain, is the business of `complete_one`.
CREATE OR REPLACE FUNCTION complete_here(
    dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[], outputs text[],
    started_ats timestamptz[], workers text[], failures text[], queue_shard int, folds int)
RETURNS TABLE (o_taken uuid[], o_released uuid[], o_ended uuid[], o_wide uuid[], o_inputs text[], o_made text[],
    o_awake uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    edges_max CONSTANT int := CASE WHEN folds & 4 > 0 THEN 1000 ELSE 32 END;        -- of one node
    edges_here_max CONSTANT int := CASE WHEN folds & 4 > 0 THEN 5000 ELSE 16000 END; -- of all nodes that end
    releases_max CONSTANT int := CASE WHEN folds & 4 > 0 THEN 1000 ELSE 100 END;    -- of one DAG
    row_max CONSTANT int := 100;        -- changes in a row of the log, as `services.dag.changes` has it
    tail CONSTANT text := lpad(to_hex(queue_shard), 3, '0');
    locked bigint[];
    runs bigint[];
    of_runs uuid[];
    one record;
BEGIN
    LOCK TABLE change, dag, edge, node, tally IN ROW EXCLUSIVE MODE NOWAIT;
    IF folds & 16 > 0 THEN
        -- Mostly it is one DAG that nobody has locked: to lock that takes less than to be ready to wait for it.
        PERFORM FROM dag WHERE dag.id = dag_ids[1] AND dag_ids[1] = ALL (dag_ids) FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM await_dags(dag_ids);
        END IF;
    END IF;
    SELECT array_agg(d.no) FILTER (WHERE d.workflow IS NULL), array_agg(d.no) FILTER (WHERE d.workflow IS NOT NULL)
    INTO locked, runs FROM (
        SELECT dag.no, dag.workflow FROM dag WHERE dag.no = ANY (ARRAY(
            SELECT f.no FROM unnest(dag_ids) AS w(id)
            CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = w.id OFFSET 0) AS f))
            AND dag.state = 'running' AND NOT dag.held AND NOT dag.paused AND dag.cleanup_phase = 0
            AND dag.last_event > 0
        FOR UPDATE SKIP LOCKED) AS d;
    IF (runs IS NOT NULL OR 'decider' = ANY (node_keys)) AND array_remove(failures, NULL) = '{}' THEN
        SELECT t.o_taken, t.o_made, t.o_awake INTO of_runs, o_made, o_awake
        FROM tell_runs_here(runs, dag_ids, node_keys, generations, item_ids, attempt_numbers, outputs, started_ats,
            workers, queue_shard) AS t;
    END IF;
    IF locked IS NULL THEN
        o_taken := of_runs;
        RETURN NEXT;
        RETURN;
    END IF;
    IF cardinality(dag_ids) = 1 AND failures[1] IS NULL AND outputs[1] LIKE '%\\u%' IS NOT TRUE THEN
        SELECT * INTO one FROM complete_one(
            locked[1], node_keys[1], generations[1], item_ids[1], attempt_numbers[1], outputs[1], started_ats[1],
            workers[1], tail, folds & 2 > 0);
        IF one.o_is_taken THEN
            o_taken := item_ids;
            IF one.o_released IS NOT NULL THEN
                o_released := ARRAY[one.o_released];
                o_inputs := ARRAY[one.o_inputs];
            END IF;
            IF one.o_ended IS NOT NULL THEN
                o_ended := ARRAY[one.o_ended];
            END IF;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    WITH dags AS MATERIALIZED (
        SELECT d.* FROM unnest(locked) AS w(no)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, dag.no, dag.id, dag.blocked + dag.released AS unfinished,
                dag.cleanup_left, dag.last_event, dag.open, dag.failed > dag.tolerated AS has_failed,
                dag.on_failure = 'cancel' AS cancels,
                dag.open OR folds & 2 > 0 AND dag.cleanup_left = 0 AND dag.parent_dag IS NULL AS may_empty
            FROM dag WHERE dag.no = w.no OFFSET 0) AS d),
    -- The nodes that end; no number where one does not end so simply.
    ending AS MATERIALIZED (
        SELECT dags.no AS dag_no, u.generation, u.attempts, u.output, u.started_at, u.worker, u.failure, u.nth,
            x.place, x.no,
            x.no IS NULL OR u.output LIKE '%\\u%' OR u.failure IS NOT NULL AND (dags.cancels OR x.tolerate) AS stops
        FROM dags
        JOIN unnest(dag_ids, node_keys, generations, item_ids, attempt_numbers, outputs, started_ats, workers, failures)
            WITH ORDINALITY
            AS u(dag_id, key, generation, item_id, attempts, output, started_at, worker, failure, nth)
            ON u.dag_id = dags.id
        LEFT JOIN LATERAL (
            SELECT ctid AS place, node.no, node.tolerate FROM node
            WHERE node.dag_no = dags.no AND node.key = u.key AND node.generation = u.generation
                AND node.state = 'released' AND node.item_id = u.item_id AND NOT node.sub AND node.run_on IS NULL
            OFFSET 0) AS x ON true),
    edges_below AS MATERIALIZED (
        SELECT ending.dag_no, ending.no AS up, ending.failure IS NOT NULL AS failed, x.place, x.down FROM ending
        CROSS JOIN LATERAL (
            SELECT ctid AS place, edge.down FROM edge WHERE edge.up = ending.no AND NOT edge.satisfied
            LIMIT edges_max + 1) AS x
        LIMIT edges_here_max + 1),
    -- The nodes below them as they will stand, and what that decides: `stop` is what is not decided here, and what
    -- ends by this very statement, which cannot write a row twice.
    nodes_below AS MATERIALIZED (
        SELECT x.dag_no, x.no, x.edges, x.failed, x.place, x.generation, CASE
            WHEN x.state = 'released' AND x.no = ANY (ARRAY(SELECT ending.no FROM ending)) THEN 'stop'
            WHEN x.state <> 'blocked' OR x.run_on IS NOT NULL THEN 'wait'
            WHEN x.ext_failed OR x.verdict = 'skip' THEN 'stop'
            WHEN x.verdict = 'wait' OR x.ext_left > 0 THEN 'wait'
            WHEN x.enqueued AND NOT x.sub AND right(x.item_id::text, 3) = tail
                AND (NOT x.pass_outputs OR given.inputs IS NOT NULL) THEN 'fire'
            ELSE 'stop' END AS what, given.inputs
        FROM (SELECT edges_below.dag_no, edges_below.down AS no, count(*)::int AS edges,
            (count(*) FILTER (WHERE edges_below.failed))::int AS failed FROM edges_below
        GROUP BY edges_below.dag_no, edges_below.down) AS k
        CROSS JOIN LATERAL (
            SELECT k.*, ctid AS place, node.item_id, node.state, node.generation, node.enqueued, node.sub,
                node.run_on, node.pass_outputs, node.ext_left, node.ext_failed, node.key,
                verdict(node.trigger, node.up_left - k.edges, node.up_ok + k.edges - k.failed,
                    node.up_failed + k.failed,
                    node.up_skipped, node.up_cancelled) AS verdict
            FROM node WHERE node.no = k.no OFFSET 0) AS x
        CROSS JOIN LATERAL (
            SELECT CASE WHEN x.pass_outputs AND x.state = 'blocked' AND x.verdict = 'fire' THEN gather_inputs(
                x.no, x.dag_no, x.key, dag_ids, node_keys, outputs, (SELECT count(*) FROM edges_below)) END AS inputs
            OFFSET 0) AS given),
    -- What is written to each DAG's row and its log: ends in the order of the call, then releases, then the DAG's
    -- own end.
    totals AS MATERIALIZED (
        SELECT dags.place, dags.no, dags.id, dags.last_event AS was, k.ended, k.failed, k.fired, k.news,
            CASE WHEN dags.unfinished > k.ended OR dags.open THEN NULL
                WHEN dags.has_failed OR k.failed > 0 THEN 'failed'
                ELSE 'succeeded' END AS verdict, k.is_wide
        FROM dags
        JOIN (
            SELECT p.dag_no, count(p.nth)::int AS ended, (count(*) FILTER (WHERE p.state = ':failed'))::int AS failed,
                (count(p.no) - count(p.nth))::int AS fired,
                array_agg((p.no & 4194303) || p.state
                    || CASE WHEN p.generation = 1 THEN '' ELSE '#' || p.generation END
                    ORDER BY p.nth, p.no) AS news,
                bool_or(p.is_wide) IS TRUE OR count(p.no) - count(p.nth) > releases_max AS is_wide
            FROM (
                SELECT ending.dag_no, ending.no, ending.generation, ending.nth,
                    CASE WHEN ending.failure IS NULL THEN ':succeeded' ELSE ':failed' END AS state,
                    ending.stops OR (SELECT count(*) > edges_here_max FROM edges_below) AS stops, false AS is_wide
                FROM ending
                UNION ALL
                SELECT nodes_below.dag_no, nodes_below.no, nodes_below.generation, NULL, ':released',
                    nodes_below.what = 'stop', false FROM nodes_below
                WHERE nodes_below.what <> 'wait'
                UNION ALL
                SELECT edges_below.dag_no, NULL, NULL, NULL, NULL, false, true FROM edges_below
                GROUP BY edges_below.dag_no, edges_below.up
                HAVING count(*) > edges_max) AS p
            GROUP BY p.dag_no HAVING bool_or(p.stops) IS NOT TRUE) AS k ON k.dag_no = dags.no
        WHERE dags.unfinished - k.ended > dags.cleanup_left OR dags.may_empty),
    written AS (
        UPDATE node SET
            state = CASE x.what WHEN 'end' THEN CASE WHEN x.failure IS NULL THEN 'succeeded' ELSE 'failed' END
                WHEN 'fire' THEN 'released' ELSE node.state END,
            output = CASE x.what WHEN 'end' THEN x.output ELSE node.output END,
            error = CASE x.what WHEN 'end' THEN x.failure::json #>> '{}' ELSE node.error END,
            attempts = coalesce(x.attempts, node.attempts),
            started_at = CASE x.what WHEN 'end' THEN x.started_at ELSE node.started_at END,
            worker = CASE x.what WHEN 'end' THEN x.worker ELSE node.worker END,
            released_at = CASE x.what WHEN 'fire' THEN shard_now() ELSE node.released_at END,
            finished_at = CASE x.what WHEN 'end' THEN shard_now() WHEN 'fire' THEN NULL ELSE node.finished_at END,
            up_left = node.up_left - x.edges, up_ok = node.up_ok + x.edges - x.failed,
            up_failed = node.up_failed + x.failed
        FROM (
            SELECT ending.dag_no, ending.place, 'end' AS what, ending.output, ending.attempts, ending.started_at,
                ending.worker, ending.failure, 0 AS edges, 0 AS failed, NULL AS inputs
            FROM ending
            UNION ALL
            SELECT nodes_below.dag_no, nodes_below.place, nodes_below.what, NULL, NULL, NULL, NULL, NULL,
                nodes_below.edges, nodes_below.failed, nodes_below.inputs
            FROM nodes_below) AS x
        JOIN totals ON totals.no = x.dag_no AND NOT totals.is_wide
        WHERE node.ctid = x.place
        RETURNING node.item_id, x.what, x.inputs),
    flipped AS (
        UPDATE edge SET satisfied = true
        FROM edges_below JOIN totals ON totals.no = edges_below.dag_no AND NOT totals.is_wide
        WHERE edge.ctid = edges_below.place),
    logged AS (
        INSERT INTO change (dag_no, last_event, nodes, dag)
        SELECT totals.no, totals.was + least(i + row_max - 1, totals.ended + totals.fired) + (x.last IS NOT NULL)::int,
            array_to_string(totals.news[i : i + row_max - 1], ' '), x.last
        FROM totals CROSS JOIN LATERAL generate_series(1, totals.ended + totals.fired, row_max) AS i
        CROSS JOIN LATERAL (
            SELECT CASE WHEN i + row_max > totals.ended + totals.fired
                THEN '{"state": "' || totals.verdict || '", "open": false, "held": false, "paused": false}' END AS last
            OFFSET 0) AS x
        WHERE NOT totals.is_wide),
    counted AS (
        UPDATE dag SET released = dag.released - totals.ended + totals.fired,
            succeeded = dag.succeeded + totals.ended - totals.failed, failed = dag.failed + totals.failed,
            blocked = dag.blocked - totals.fired,
            last_event = totals.was + totals.ended + totals.fired + (totals.verdict IS NOT NULL)::int,
            state = coalesce(totals.verdict, dag.state),
            finished_at = CASE WHEN totals.verdict IS NULL THEN dag.finished_at ELSE shard_now() END
        FROM totals WHERE dag.ctid = totals.place AND NOT totals.is_wide)
    SELECT array_agg(written.item_id) FILTER (WHERE written.what = 'end'),
        array_agg(written.item_id) FILTER (WHERE written.what = 'fire'),
        (SELECT array_agg(totals.id) FROM totals WHERE totals.verdict IS NOT NULL AND NOT totals.is_wide),
        (SELECT array_agg(u.item_id) FROM unnest(dag_ids, item_ids) AS u(dag_id, item_id)
            WHERE u.dag_id = ANY (ARRAY(SELECT totals.id FROM totals WHERE totals.is_wide))),
        array_agg(written.inputs) FILTER (WHERE written.what = 'fire')
    INTO o_taken, o_released, o_ended, o_wide, o_inputs
    FROM written;
    IF of_runs IS NOT NULL THEN
        o_taken := o_taken || of_runs;
    END IF;
    IF o_ended IS NOT NULL THEN
        INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled)
        SELECT d.state, count(*), sum(d.succeeded), sum(d.failed), sum(d.skipped), sum(d.cancelled)
        FROM unnest(o_ended) AS w(id)
        CROSS JOIN LATERAL (SELECT * FROM dag WHERE dag.id = w.id OFFSET 0) AS d
        GROUP BY d.state;
    END IF;
    RETURN NEXT;
END $$;
