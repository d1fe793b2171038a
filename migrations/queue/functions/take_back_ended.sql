-- The end of an enqueue with caller-made ids, run after its insert with a snapshot of its own: takes back
-- the rows whose ids ended before (the insert waited for a transaction that ended them, or came long after).
CREATE OR REPLACE FUNCTION take_back_ended(wanted uuid[]) RETURNS TABLE (id uuid, outcome text)
LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT a.id, 'acked'::text AS outcome FROM acked_among(wanted) AS a
        UNION ALL
        SELECT e.id, e.outcome FROM ended e WHERE e.id = ANY (wanted)
        UNION ALL
        SELECT e.id, e.outcome FROM ended_old e WHERE e.id = ANY (wanted)),
    undone AS (DELETE FROM item i WHERE i.id = ANY (ARRAY(SELECT g.id FROM gone g)))
    SELECT g.id, g.outcome FROM gone g;
END $$;
