-- Who this schema is, so that a host with an old map can do no harm; `state` as in the queue's shards.
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'open',
    move text);
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);
