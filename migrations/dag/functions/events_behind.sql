-- Events of a run behind one, in order, without what a reset has made void: as many as come before they take so many bytes together, and one.
CREATE OR REPLACE FUNCTION events_behind(
    run_no bigint, last bigint, rows_max int, bytes_max bigint,
    OUT o_event bigint, OUT o_at timestamptz, OUT o_kind text, OUT o_key text, OUT o_generation int, OUT o_state text,
    OUT o_output text, OUT o_error text, OUT o_data text, OUT o_after bigint)
RETURNS SETOF record LANGUAGE sql STABLE AS $$
SELECT event, at, kind, key, generation, state, output, error, data, after FROM (
    SELECT page.*, sum(bytes) OVER (ORDER BY event) AS total FROM (
        SELECT event.*, 120 + octet_length(key) + coalesce(octet_length(output), 0)
            + coalesce(octet_length(error), 0) + coalesce(octet_length(data), 0) AS bytes
        FROM event WHERE dag_no = run_no AND event.event > last AND event.void IS NULL ORDER BY event.event LIMIT rows_max) AS page) AS sized
WHERE total - bytes < bytes_max
ORDER BY event;
$$;
