-- The shard's only clock. Tests replace this function to move it; `now()` would stand still while a transaction
-- waits for a lock.
CREATE OR REPLACE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
