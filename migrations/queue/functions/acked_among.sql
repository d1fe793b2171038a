-- Which of these ids were acked under leases that have run out. An id is looked for by halves in each row of its time.
CREATE OR REPLACE FUNCTION acked_among(wanted uuid[]) RETURNS TABLE (id uuid, namespace_id int) LANGUAGE sql STABLE AS $$
    SELECT asked.id, packed.namespace_id
    FROM (
        SELECT each.made, array_agg(each.id) AS ids
        FROM (SELECT w.id, left(w.id::text, 12) AS made FROM unnest(wanted) AS w(id)) AS each GROUP BY each.made) AS times
    CROSS JOIN LATERAL (
        SELECT acked.namespace_id, acked.ids FROM acked WHERE acked.made = times.made OFFSET 0) AS packed
    CROSS JOIN LATERAL unnest(times.ids) AS asked(id)
    WHERE packed.ids[width_bucket(asked.id, packed.ids)] = asked.id
$$;
