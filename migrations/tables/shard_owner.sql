-- Who owns the shard: one row, a lease. No index, so that renewals stay on the page.
CREATE TABLE shard_owner (
    owner text,                               -- NULL: given up
    epoch bigint NOT NULL,                    -- one more with each change of owner
    expires_at timestamptz NOT NULL,
    wanted_by text,                           -- who the balance gives it to, while another has it
    -- What the owner of an epoch understands: an older program, which knows nothing of this, leaves its epoch out.
    level int NOT NULL DEFAULT 0,
    level_epoch bigint NOT NULL DEFAULT 0);
INSERT INTO shard_owner (owner, epoch, expires_at) VALUES (NULL, 0, clock_timestamp());
