-- An item as JSON, in part: its id, U+001F, which cannot stand in JSON text, and the members that only its row knows. To
-- be inlined: one expression, of its arguments alone. `known_at_json` is the JSON of `known_at`.
CREATE OR REPLACE FUNCTION item_piece(item item, known_at timestamptz, known_at_json text)
RETURNS text LANGUAGE sql STABLE AS $$
SELECT item.id::text || E'\x1f' || item.payload || CASE
    WHEN item.metadata IS NULL AND item.inputs IS NULL AND item.headers IS NULL AND NOT item.managed
        THEN ',"metadata":null,"inputs":null,"headers":null'
    ELSE ',"metadata":' || coalesce(item.metadata, 'null') || ',"inputs":' || coalesce(item.inputs, 'null')
        || ',"headers":' || coalesce(item.headers, 'null')
        || CASE WHEN item.managed AND item.ack_context IS NOT NULL
            THEN ',"dag":{"id":' || coalesce((item.ack_context::json -> 'dag')::text, 'null')
                || ',"node":' || coalesce((item.ack_context::json -> 'node')::text, 'null')
                || ',"generation":' || coalesce((item.ack_context::json -> 'generation')::text, 'null')
                || '}'
            ELSE '' END
    END || ',"priority":' || item.priority || ',"attempt":' || item.attempts + 1 || ',"enqueued_at":'
    || CASE WHEN item.enqueued_at = known_at THEN known_at_json
        ELSE rtrim(to_json(item.enqueued_at AT TIME ZONE 'UTC')::text, '"') || 'Z"' END
$$;
