"""Of a node that has ended: since when its item was held by whom, in the delivery that it ended in."""

from migrations.script import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SQL = r"""
ALTER TABLE node ADD COLUMN started_at timestamptz, ADD COLUMN worker text;
ALTER TABLE kept_node ADD COLUMN started_at timestamptz, ADD COLUMN worker text;

DROP FUNCTION complete_here;

-- Applies acks of nodes' items where that is simple, for the queue shard that they are acked on and in its
-- transaction; called with this schema as the search_path. The arrays have one element an item: what its ack
-- context says, its id, its attempts, its output, and since when and by whom it was held. One row says which
-- items' ends are applied here, and which disabled items of that queue shard the caller has to make ready in the
-- same transaction. What is not in `o_taken` is as it was, and goes the ordinary way: by a completion item, to
-- services.dag.completing, which decides the same.
--
-- Nobody is waited for: a DAG whose row is locked, or a table that is, is left alone. All that follows the locks
-- reads with a snapshot of its own. A DAG's ends are taken together or not at all, and only while it runs, neither
-- held nor paused, cleaning up nor being reopened; if each is the end of a released node in its living generation
-- with few edges left; if every node that these decide is to be released, has its item disabled on that shard and
-- is given no outputs; and if the DAG does not end by it.
CREATE FUNCTION complete_here(
    dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[], outputs text[],
    started_ats timestamptz[], workers text[], queue_shard int)
RETURNS TABLE (o_taken uuid[], o_released uuid[]) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    edges_max CONSTANT int := 32;       -- of one node
    changes_max CONSTANT int := 100;    -- of one DAG: a row of its log
    tail CONSTANT text := lpad(to_hex(queue_shard), 3, '0');
    locked bigint[];
BEGIN
    LOCK TABLE change, dag, edge, node IN ROW EXCLUSIVE MODE NOWAIT;
    SELECT array_agg(d.no) INTO locked FROM (
        SELECT dag.no FROM dag WHERE dag.no = ANY (ARRAY(
            SELECT f.no FROM unnest(dag_ids) AS w(id)
            CROSS JOIN LATERAL (SELECT dag.no FROM dag WHERE dag.id = w.id OFFSET 0) AS f))
            AND dag.state = 'running' AND NOT dag.held AND NOT dag.paused AND dag.cleanup_phase = 0
            AND dag.last_event > 0
        FOR UPDATE SKIP LOCKED) AS d;
    IF locked IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH g AS MATERIALIZED (
        SELECT d.* FROM unnest(locked) AS w(no)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, dag.no, dag.id, dag.intent + dag.blocked + dag.released AS unfinished,
                dag.cleanup_left, dag.last_event
            FROM dag WHERE dag.no = w.no OFFSET 0) AS d),
    w AS MATERIALIZED (
        SELECT g.no AS dag_no, u.* FROM g
        JOIN unnest(dag_ids, node_keys, generations, item_ids, attempt_numbers, outputs, started_ats, workers)
            WITH ORDINALITY AS u(dag_id, key, generation, item_id, attempts, output, started_at, worker, nth)
            ON u.dag_id = g.id),
    -- The nodes that end; no number where one does not end so simply.
    n AS MATERIALIZED (
        SELECT w.*, x.place, x.no FROM w
        LEFT JOIN LATERAL (
            SELECT ctid AS place, node.no FROM node
            WHERE node.dag_no = w.dag_no AND node.key = w.key AND node.generation = w.generation
                AND node.state = 'released' AND node.item_id = w.item_id AND NOT node.sub AND node.run_on IS NULL
            OFFSET 0) AS x ON true),
    e AS MATERIALIZED (
        SELECT n.dag_no, n.no AS up, x.place, x.down FROM n
        CROSS JOIN LATERAL (
            SELECT ctid AS place, edge.down FROM edge WHERE edge.up = n.no AND NOT edge.satisfied
            LIMIT edges_max + 1) AS x),
    -- The nodes below them as they will stand, and what that decides: `stop` is what is not decided here.
    c AS MATERIALIZED (
        SELECT x.*, CASE
            WHEN x.state <> 'blocked' OR x.run_on IS NOT NULL THEN 'wait'
            WHEN x.ext_failed OR x.verdict = 'skip' THEN 'stop'
            WHEN x.verdict = 'wait' OR x.ext_left > 0 THEN 'wait'
            WHEN x.enqueued AND NOT x.sub AND NOT x.pass_outputs AND right(x.item_id::text, 3) = tail THEN 'fire'
            ELSE 'stop' END AS what
        FROM (SELECT e.dag_no, e.down AS no, count(*)::int AS edges FROM e GROUP BY e.dag_no, e.down) AS k
        CROSS JOIN LATERAL (
            SELECT k.*, ctid AS place, node.item_id, node.state, node.generation, node.enqueued, node.sub,
                node.run_on, node.pass_outputs, node.ext_left, node.ext_failed,
                verdict(node.trigger, node.up_left - k.edges, node.up_ok + k.edges, node.up_failed,
                    node.up_skipped, node.up_cancelled) AS verdict
            FROM node WHERE node.no = k.no OFFSET 0) AS x),
    b AS MATERIALIZED (
        SELECT n.dag_no FROM n WHERE n.no IS NULL OR n.output LIKE '%\\u%'
        UNION ALL
        SELECT e.dag_no FROM e GROUP BY e.dag_no, e.up HAVING count(*) > edges_max
        UNION ALL
        SELECT c.dag_no FROM c WHERE c.what = 'stop'
        UNION ALL
        -- It would be written twice by one statement.
        SELECT c.dag_no FROM c JOIN n ON n.no = c.no),
    -- What is written to each DAG's row and its log: ends in the order of the call, then releases.
    t AS MATERIALIZED (
        SELECT g.place, g.no, k.ended, k.fired, g.last_event + k.ended + k.fired AS last_event, k.news
        FROM g
        JOIN (
            SELECT p.dag_no, (count(*) FILTER (WHERE p.state = 'succeeded'))::int AS ended,
                (count(*) FILTER (WHERE p.state = 'released'))::int AS fired,
                string_agg((p.no & 4194303) || ':' || p.state
                    || CASE WHEN p.generation = 1 THEN '' ELSE '#' || p.generation END,
                    ' ' ORDER BY p.state DESC, p.nth, p.no) AS news
            FROM (
                SELECT n.dag_no, n.no, n.generation, 'succeeded' AS state, n.nth FROM n
                UNION ALL
                SELECT c.dag_no, c.no, c.generation, 'released', 0 FROM c WHERE c.what = 'fire') AS p
            GROUP BY p.dag_no) AS k ON k.dag_no = g.no
        WHERE g.no <> ALL (ARRAY(SELECT b.dag_no FROM b)) AND g.unfinished - k.ended > g.cleanup_left
            AND k.ended + k.fired <= changes_max),
    ended AS (
        UPDATE node SET state = 'succeeded', output = n.output, error = NULL, attempts = n.attempts,
            started_at = n.started_at, worker = n.worker, finished_at = shard_now()
        FROM n JOIN t ON t.no = n.dag_no WHERE node.ctid = n.place
        RETURNING node.item_id),
    flipped AS (
        UPDATE edge SET satisfied = true FROM e JOIN t ON t.no = e.dag_no WHERE edge.ctid = e.place),
    counted AS (
        UPDATE node SET up_left = node.up_left - c.edges, up_ok = node.up_ok + c.edges,
            state = CASE WHEN c.what = 'fire' THEN 'released' ELSE node.state END,
            released_at = CASE WHEN c.what = 'fire' THEN shard_now() ELSE node.released_at END,
            finished_at = CASE WHEN c.what = 'fire' THEN NULL ELSE node.finished_at END
        FROM c JOIN t ON t.no = c.dag_no WHERE node.ctid = c.place
        RETURNING CASE WHEN c.what = 'fire' THEN node.item_id END AS item_id),
    logged AS (INSERT INTO change (dag_no, last_event, nodes) SELECT t.no, t.last_event, t.news FROM t),
    written AS (
        UPDATE dag SET released = dag.released - t.ended + t.fired, succeeded = dag.succeeded + t.ended,
            blocked = dag.blocked - t.fired, last_event = t.last_event
        FROM t WHERE dag.ctid = t.place)
    SELECT (SELECT array_agg(ended.item_id) FROM ended),
        (SELECT array_agg(counted.item_id) FROM counted WHERE counted.item_id IS NOT NULL);
END $$;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
