-- What an item takes of an answer, about. To be inlined: one expression, of its argument alone.
CREATE OR REPLACE FUNCTION item_bytes(item item) RETURNS int LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN item.metadata IS NULL AND item.inputs IS NULL AND item.headers IS NULL AND item.ack_context IS NULL
    THEN octet_length(item.payload) + 500
    ELSE octet_length(item.payload) + coalesce(octet_length(item.metadata), 0) + coalesce(octet_length(item.inputs), 0)
        + coalesce(octet_length(item.headers), 0) + coalesce(octet_length(item.ack_context), 0) + 500 END
$$;
