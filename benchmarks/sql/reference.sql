-- The fixed reference: a plain queue in one table, as one would write it by hand. It does not change with the
-- services, so that numbers stay comparable over the years.

-- name: make_reference()
DROP SCHEMA IF EXISTS reference CASCADE;
CREATE SCHEMA reference;
CREATE TABLE reference.queue_item (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id int NOT NULL,
    state smallint NOT NULL DEFAULT 0,        -- 0 ready, 1 leased
    priority int NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz,
    attempts int NOT NULL DEFAULT 0,
    payload text NOT NULL);
CREATE INDEX queue_item_ready ON reference.queue_item (topic_id, priority, due_at, id) WHERE state = 0;
ANALYZE reference.queue_item;

-- name: reference_insert(payloads)
INSERT INTO queue_item (topic_id, payload) SELECT 1, unnest($1::text[]);

-- name: reference_lease(limit)
UPDATE queue_item SET state = 1, lease_until = now() + interval '60 s', attempts = attempts + 1
WHERE id = ANY (ARRAY(
    SELECT id FROM queue_item WHERE topic_id = 1 AND state = 0 AND due_at <= now()
    ORDER BY priority, due_at, id LIMIT $1::int FOR UPDATE SKIP LOCKED))
RETURNING id, payload;

-- name: reference_delete(ids)
DELETE FROM queue_item WHERE id = ANY ($1::bigint[]);
