-- Of items that a claim has taken out of `ready`, which make an answer too long: in order of service, those past the
-- `bytes_maxima` of their call, and, of all calls, those past `bytes_max`; the smaller answers come first, so that who
-- asks for less than an equal part gets it. An item in `firsts` is leased at any size. The rows of the others are
-- written back before anybody sees that they were gone. `tokens` and `bytes_maxima` have one element for all, or one
-- for each of `asked`, which is sorted. An item of 0 bytes is past its TTL: it is shown to nobody.
CREATE OR REPLACE FUNCTION leave_ready(
    claimed uuid[], sizes int[], asked uuid[], tokens uuid[], bytes_maxima bigint[], firsts uuid[], bytes_max bigint)
RETURNS TABLE (o_token uuid, o_id uuid) LANGUAGE sql VOLATILE AS $$
WITH told AS (
    SELECT item.id, topic_id, priority, deliver_at, bytes, item.id <> ALL (firsts) AS is_later,
        tokens[least(width_bucket(item.id, asked), cardinality(tokens))] AS token,
        bytes_maxima[least(width_bucket(item.id, asked), cardinality(bytes_maxima))] AS call_bytes_max
    FROM unnest(claimed, sizes) AS sized(id, bytes) JOIN item ON item.id = sized.id WHERE bytes > 0),
of_calls AS (
    SELECT *, sum(bytes) OVER (
        PARTITION BY token ORDER BY is_later, priority, deliver_at, id ROWS UNBOUNDED PRECEDING) AS bytes_of_call
    FROM told),
of_all AS (
    SELECT *, sum(bytes) OVER (ORDER BY bytes_of_call, token ROWS UNBOUNDED PRECEDING) AS bytes_of_all
    FROM of_calls),
left_over AS MATERIALIZED (
    SELECT * FROM of_all WHERE is_later AND (bytes_of_call > call_bytes_max OR bytes_of_all > bytes_max)),
written_back AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM left_over)
SELECT token, id FROM left_over
$$;
