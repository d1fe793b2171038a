-- Who this schema is and which slots it answers for, so that a host with an old map can do no harm. `state` is
-- `open`, or, in a schema that no service looks into: `incoming` (the copy of a move, not whole yet), `moving`
-- (fenced, the copy's source) and `moved`.
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    owner text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'open',
    move text,
    slots int4multirange);                    -- whose idempotency keys live here; NULL: as the environment's map
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);
