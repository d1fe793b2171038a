-- Turns of runs that ask for no more than tasks and for steps whose results they have, each of another run, as
-- `services.dag.workflows.turn_commits` would write them; their runs are not parked. The arrays that come first have one
-- element a turn; those of commands and of results name their turn by its place, in order. `command_nths` count a turn's
-- commands, from 0, and `item_nths` its tasks. `after_mins` and `after_maxs` bound the events that commands come after.
--
-- One row at least for each turn that is written: the run's number and its DAG's next node number as they were, and,
-- where code is to be told of something, the events behind `lasts`, of each run so many rows and bytes. The other turns
-- are left as if they had not been sent, for whatever reason: a run that somebody else has locked or has gone on with, one
-- that is paused, asked for what it has already or has reached a limit.
CREATE OR REPLACE FUNCTION take_turns(
    dag_ids uuid[], namespaces text[], generations int[], secret_hashes bytea[], turns bigint[], digests bytea[],
    lasts bigint[], seens bigint[], receiveds text[], received_totals int[], made_bys text[], after_mins bigint[],
    after_maxs bigint[], item_counts int[], command_counts int[], result_counts int[],
    command_places int[], command_nths int[], item_nths int[], command_keys text[], command_afters bigint[],
    command_datas text[], item_ids uuid[], topics text[], fingerprints bytea[], items text[],
    result_places int[], result_nths int[], result_keys text[], result_states text[], result_outputs text[],
    result_errors text[],
    nodes_max int, unfinished_max int, overdue_s float8, rows_max int, bytes_max bigint)
RETURNS TABLE (o_place int, o_dag_no bigint, o_next_n int, o_last_event bigint, o_event bigint, o_at timestamptz,
    o_kind text, o_key text, o_generation int, o_state text, o_output text, o_error text, o_data text, o_after bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked bigint[];
    written int[];
    run_nos bigint[];
    next_ns int[];
    last_events bigint[];
    tells boolean[];
BEGIN
    SELECT array_agg(d.no) INTO locked FROM (
        SELECT dag.no FROM dag WHERE dag.no = ANY (ARRAY(
            SELECT f.no FROM unnest(dag_ids) AS w(id)
            CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = w.id OFFSET 0) AS f))
            AND dag.workflow IS NOT NULL AND dag.state = 'running' AND NOT dag.held AND NOT dag.paused
            AND dag.started_lift = 0 AND dag.path_lift = 0 AND dag.last_event > 0
        FOR UPDATE SKIP LOCKED) AS d;
    IF locked IS NULL THEN
        RETURN;
    END IF;
    WITH plain AS MATERIALIZED (
        SELECT w.*, d.*, r.*, r.last_event + w.commands + w.results AS new_last,
            CASE WHEN w.results > 0 THEN r.last_event + w.commands + w.results ELSE r.last_told END AS new_told
        FROM unnest(dag_ids, namespaces, generations, secret_hashes, turns, digests, lasts, seens, receiveds,
                received_totals, made_bys, after_mins, after_maxs, item_counts, command_counts, result_counts)
            WITH ORDINALITY AS w(dag_id, namespace, generation, secret_hash, turn, digest, last, seen, received,
                received_total, made_by, after_min, after_max, items, commands, results, place)
        -- Each by its own key alone: an index of more than one column may not be a better one.
        CROSS JOIN LATERAL (
            SELECT ctid AS dag_place, dag.no, dag.namespace AS of_namespace, dag.next_n, dag.last_event AS last_change,
                dag.blocked + dag.released AS unfinished
            FROM dag WHERE dag.id = w.dag_id OFFSET 0) AS d
        CROSS JOIN LATERAL (
            SELECT ctid AS run_place, run.state AS run_state, run.turn AS last_turn, run.secret_hash AS run_secret,
                run.open_steps, run.seen AS was_seen, run.last_event, run.last_told, run.signals
            FROM run WHERE run.dag_no = d.no OFFSET 0) AS r
        CROSS JOIN LATERAL (
            SELECT node.state AS decider_state, node.generation AS decider_generation
            FROM node WHERE node.no = d.no << 22 OFFSET 0) AS n
        WHERE d.no = ANY (locked) AND d.of_namespace = w.namespace AND d.next_n + w.items <= nodes_max
            AND d.unfinished + w.items <= unfinished_max AND r.run_state = 'running' AND r.last_turn = w.turn - 1
            AND r.run_secret = w.secret_hash AND r.open_steps = '{}' AND w.last <= r.last_event
            AND w.seen BETWEEN r.was_seen AND r.last_event
            AND coalesce(w.after_min > r.was_seen AND w.after_max <= r.last_event, true)
            AND n.decider_state = 'released' AND n.decider_generation = w.generation AND NOT EXISTS (
            SELECT FROM unnest(command_places, command_keys) AS c(place, key)
            WHERE c.place = w.place AND (
                EXISTS (SELECT FROM node WHERE node.dag_no = d.no AND node.key = c.key)
                OR EXISTS (SELECT FROM event WHERE event.dag_no = d.no AND event.key = c.key
                    AND event.after IS NOT NULL AND event.kind = 'step')))),
    commands AS MATERIALIZED (
        SELECT c.*, plain.no AS dag_no, (plain.no << 22) + plain.next_n + c.item_nth AS no,
            plain.last_event + 1 + c.nth AS event
        FROM unnest(command_places, command_nths, item_nths, command_keys, command_afters, command_datas, item_ids,
                topics, fingerprints, items)
            AS c(place, nth, item_nth, key, after, data, item_id, topic, fingerprint, item)
        JOIN plain ON plain.place = c.place),
    specs AS (
        INSERT INTO node_spec (node_no, item)
        SELECT commands.no, commands.item FROM commands WHERE commands.item_nth IS NOT NULL),
    created AS (
        INSERT INTO node (dag_no, no, key, item_id, state, topic, trigger, pass_outputs, fingerprint, enqueued,
            up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left, ext_failed, created_at, released_at)
        SELECT commands.dag_no, commands.no, commands.key, commands.item_id, 'released', commands.topic,
            'all_succeeded', false, commands.fingerprint, false, 0, 0, 0, 0, 0, 0, false, shard_now(), shard_now()
        FROM commands WHERE commands.item_nth IS NOT NULL),
    sent AS (
        INSERT INTO outbox (node_no, generation, action, item_id, inputs, created_at, due_at)
        SELECT commands.no, 1, 'enqueue', commands.item_id, NULL, shard_now(),
            shard_now() + make_interval(secs => overdue_s)
        FROM commands WHERE commands.item_nth IS NOT NULL),
    recorded AS (
        INSERT INTO event (dag_no, event, kind, key, state, data, after)
        SELECT commands.dag_no, commands.event, CASE WHEN commands.item_nth IS NULL THEN 'step' ELSE 'item' END,
            commands.key, 'added', commands.data, commands.after
        FROM commands),
    ended AS (
        INSERT INTO event (dag_no, event, kind, key, state, output, error)
        SELECT plain.no, plain.last_event + plain.commands + 1 + e.nth, 'step', e.key, e.state, e.output, e.error
        FROM unnest(result_places, result_nths, result_keys, result_states, result_outputs, result_errors)
            AS e(place, nth, key, state, output, error)
        JOIN plain ON plain.place = e.place),
    logged AS (
        INSERT INTO change (dag_no, last_event, nodes)
        SELECT plain.no, plain.last_change + plain.items, (
            SELECT string_agg(n || ':released', ' ' ORDER BY n)
            FROM generate_series(plain.next_n, plain.next_n + plain.items - 1) AS n)
        FROM plain WHERE plain.items > 0),
    grown AS (
        UPDATE dag SET next_n = dag.next_n + plain.items, released = dag.released + plain.items,
            last_event = dag.last_event + plain.items
        FROM plain WHERE plain.items > 0 AND dag.ctid = plain.dag_place),
    gone_on AS (
        UPDATE run SET last_event = plain.new_last, last_told = plain.new_told, turn = plain.turn,
            turn_digest = plain.digest, seen = plain.seen, received = plain.received,
            received_total = least(plain.received_total, plain.signals), made_by = plain.made_by,
            stuck = NULL, stuck_attempts = 0, stuck_since = NULL
        FROM plain WHERE run.ctid = plain.run_place)
    SELECT array_agg(plain.place), array_agg(plain.no), array_agg(plain.next_n), array_agg(plain.new_last),
        array_agg(plain.new_told > plain.seen)
    INTO written, run_nos, next_ns, last_events, tells
    FROM plain;
    RETURN QUERY
    SELECT w.place, w.no, w.next_n, w.last_event, e.*
    FROM unnest(written, run_nos, next_ns, last_events, tells) AS w(place, no, next_n, last_event, tells)
    LEFT JOIN LATERAL (SELECT * FROM events_behind(w.no, lasts[w.place], rows_max, bytes_max)) AS e ON w.tells
    ORDER BY w.place, e.o_event;
END $$;
