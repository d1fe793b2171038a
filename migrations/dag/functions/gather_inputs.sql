-- What a node is given of its upstreams' outputs, as the text of a JSON object, as `services.dag.run.decisions` has it:
-- of those that ended before, and of those that end by the calling statement, which are among the arrays. NULL where they
-- are not few and small, or perhaps too deep, or where an external's data belong to it. `shares` is how many nodes
-- at most have to do with what one statement may give.
CREATE OR REPLACE FUNCTION gather_inputs(
    of_node bigint, of_dag bigint, of_key text, dag_ids uuid[], node_keys text[], outputs text[], shares bigint)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    edges_max CONSTANT int := 32;        -- upstreams of the node
    bytes_max CONSTANT int := 262144;    -- of all that is given by one statement
    depth_max CONSTANT int := 28;
BEGIN
    RETURN (
        SELECT CASE WHEN count(*) <= edges_max
                AND coalesce(sum(octet_length(o.name) + octet_length(o.output) + 2), 0) < bytes_max / shares
                AND coalesce(sum(length(o.output) - length(translate(o.output, '[{', ''))), 0) < depth_max
                AND NOT EXISTS (SELECT FROM external WHERE external.dag_no = of_dag AND external.node_key = of_key)
            THEN '{' || coalesce(string_agg(o.name || ':' || o.output, ',' ORDER BY o.up), '') || '}' END
        FROM (
            SELECT edge.up, to_json(upstream.key)::text AS name,
                CASE WHEN ending.key IS NOT NULL THEN ending.output
                    WHEN upstream.state = 'succeeded' THEN upstream.output END AS output
            FROM edge
            CROSS JOIN LATERAL (
                SELECT node.key, node.state, node.output FROM node WHERE node.no = edge.up OFFSET 0) AS upstream
            LEFT JOIN (
                SELECT u.key, u.output FROM unnest(dag_ids, node_keys, outputs) AS u(dag_id, key, output)
                WHERE u.dag_id = (SELECT dag.id FROM dag WHERE dag.no = of_dag)) AS ending
                ON ending.key = upstream.key
            WHERE edge.down = of_node LIMIT edges_max + 1) AS o);
END $$;
