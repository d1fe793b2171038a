-- What operators did.

-- name: add_audit_entry(namespace, who, verb, target, changed, origin, detail)
INSERT INTO audit_entry (namespace, who, verb, target, changed, origin, detail)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text, $7::text);

-- name: drop_audit_entries(keep_s, limit)
DELETE FROM audit_entry WHERE (at, entry_id) IN (
    SELECT at, entry_id FROM audit_entry WHERE at < shard_now() - make_interval(secs => $1::float8)
    ORDER BY at, entry_id LIMIT $2::int);

-- name: audit_entries(before, before_id, namespace, limit)
-- Newest first, behind a place.
SELECT at, entry_id, namespace, who, verb, target, changed, origin, detail
FROM audit_entry
WHERE (at, entry_id) < ($1::timestamptz, $2::bigint) AND ($3::text IS NULL OR namespace = $3::text)
ORDER BY at DESC, entry_id DESC LIMIT $4::int;
