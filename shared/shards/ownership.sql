-- Who owns this shard. One row per schema, the same in both services.

-- name: look_at_owner()
-- A lease that is over, or ends later than any can (a clock went back), is nobody's: the reader decides by `left_s`.
SELECT o.owner, o.epoch, o.wanted_by, extract(epoch FROM o.expires_at - n.at)::float8 AS left_s
FROM shard_owner o CROSS JOIN (SELECT shard_now() AS at OFFSET 0) AS n;

-- name: take_shard(owner, ttl_s, level)
-- Takes a shard that is free, that lapsed, or that a process of this name left behind.
UPDATE shard_owner SET owner = $1::text, epoch = epoch + 1, wanted_by = NULL, level = $3, level_epoch = epoch + 1,
    expires_at = shard_now() + make_interval(secs => $2::float8)
WHERE owner IS NULL OR owner = $1::text OR expires_at <= shard_now()
    OR expires_at > shard_now() + make_interval(secs => 2 * $2::float8)
RETURNING epoch;

-- name: keep_shard(owner, epoch, ttl_s)
UPDATE shard_owner SET expires_at = shard_now() + make_interval(secs => $3::float8)
WHERE owner = $1::text AND epoch = $2::bigint
RETURNING wanted_by;

-- name: ask_for_shard(owner, epoch)
-- The balance gives the shard to this process: its owner will see this when it renews.
UPDATE shard_owner SET wanted_by = $1::text WHERE epoch = $2::bigint AND owner IS NOT NULL RETURNING epoch;

-- name: give_up_shard(owner, epoch)
UPDATE shard_owner SET owner = NULL, wanted_by = NULL WHERE owner = $1::text AND epoch = $2::bigint
RETURNING epoch;
