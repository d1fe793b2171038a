-- A signal to the last run of a workflow's id, where there is nothing else to it: as
-- `services.dag.workflows.control` takes one. A decider that is parked is released, in its generation, by the item that
-- it has; its row says which (`o_item`). No row where that is not all, and then nothing is done: there is no such run, it
-- is over, paused or full; or its decider's item has to have another id, since that one is older than `id_age_s`, or of
-- none of the queue's shards that take items (`tails`, the ends of their ids; NULL: any).
CREATE OR REPLACE FUNCTION take_signal(
    of_namespace text, of_workflow text, signal_name text, signal text, said text, is_asked boolean, unread_max int,
    id_age_s float8, tails text[], overdue_s float8)
RETURNS TABLE (o_is_new boolean, o_dag_no bigint, o_dag_id text, o_generation int, o_item_id text, o_item text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    of_dag record;
    of_run record;
    decider record;
    nth int;
BEGIN
    SELECT dag.no, dag.id::text AS id, dag.state, dag.held OR dag.paused AS waits, dag.last_event,
        dag.started_lift = 0 AND dag.path_lift = 0 AS keeps_priority
    INTO of_dag
    FROM dag WHERE dag.no = (
        SELECT found.no FROM (
            SELECT workflow.dag_id FROM workflow
            WHERE workflow.namespace = of_namespace AND workflow.id = of_workflow OFFSET 0) AS w
        CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = w.dag_id OFFSET 0) AS found)
    FOR UPDATE;
    IF of_dag.no IS NULL OR of_dag.state <> 'running' OR of_dag.waits OR NOT of_dag.keeps_priority THEN
        RETURN;
    END IF;
    SELECT run.state, run.signals, run.received_total, run.last_event INTO of_run FROM run WHERE run.dag_no = of_dag.no;
    IF of_run.state <> 'running' OR of_run.signals - of_run.received_total >= unread_max THEN
        RETURN;
    END IF;
    SELECT node.no, node.state, node.generation, node.item_id::text AS item_id,
        ('x' || left(node.item_id::text, 8) || substr(node.item_id::text, 10, 4))::bit(48)::bigint
            > (extract(epoch FROM shard_now()) - id_age_s) * 1000 AS is_young,
        tails IS NULL OR right(node.item_id::text, 3) = ANY (tails) AS is_taken
    INTO decider FROM node WHERE node.no = of_dag.no << 22;
    IF decider.no IS NULL OR decider.state NOT IN ('blocked', 'released')
        OR decider.state = 'blocked' AND NOT (decider.is_young AND decider.is_taken) THEN
        RETURN;
    END IF;
    o_is_new := false;
    INSERT INTO signal_id (dag_no, id, asks) VALUES (of_dag.no, signal, is_asked) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO signal_count AS c (dag_no, name, sent) VALUES (of_dag.no, signal_name, 1)
    ON CONFLICT (dag_no, name) DO UPDATE SET sent = c.sent + 1 RETURNING sent INTO nth;
    INSERT INTO event (dag_no, event, kind, key, state, data)
    VALUES (of_dag.no, of_run.last_event + 1, 'signal', 'signal:' || signal_name || '#' || nth, 'received', said);
    UPDATE run SET signals = run.signals + 1, last_event = run.last_event + 1, last_told = run.last_event + 1
    WHERE run.dag_no = of_dag.no;
    IF decider.state = 'blocked' THEN
        UPDATE node SET state = 'released', released_at = shard_now(), finished_at = NULL WHERE node.no = decider.no;
        INSERT INTO outbox (node_no, generation, action, item_id, created_at, due_at)
        VALUES (decider.no, decider.generation, 'enqueue', decider.item_id::uuid, shard_now(),
            shard_now() + make_interval(secs => overdue_s))
        ON CONFLICT DO NOTHING;
        INSERT INTO change (dag_no, last_event, nodes)
        VALUES (of_dag.no, of_dag.last_event + 1, '0:released'
            || CASE WHEN decider.generation = 1 THEN '' ELSE '#' || decider.generation END);
        UPDATE dag SET blocked = dag.blocked - 1, released = dag.released + 1, last_event = dag.last_event + 1
        WHERE dag.no = of_dag.no;
        SELECT node_spec.item INTO o_item FROM node_spec WHERE node_spec.node_no = decider.no;
    END IF;
    o_is_new := true;
    o_dag_no := of_dag.no;
    o_dag_id := of_dag.id;
    o_generation := decider.generation;
    o_item_id := decider.item_id;
    RETURN NEXT;
END $$;
