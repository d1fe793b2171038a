-- What operators did.

-- name: begin_audit_entry(call, namespace, who, verb, target, origin, detail)
-- No row: the same call was begun before.
INSERT INTO audit_entry (call, ended, namespace, who, verb, target, origin, detail)
VALUES ($1::uuid, false, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text)
ON CONFLICT (call) WHERE call IS NOT NULL DO NOTHING
RETURNING entry_id;

-- name: end_audit_entry(call, namespace, who, verb, target, origin, detail, changed, known_as)
-- From now on it is the entry of the call `known_as`, unless there is one of that. It is not there where the call came
-- twice at once, and the one that had begun it was refused.
WITH ended AS (
    UPDATE audit_entry SET ended = true, target = $5::text, changed = $8::bigint, verb = $4::text, call = CASE
        WHEN EXISTS (SELECT FROM audit_entry AS other WHERE other.call = $9::uuid) THEN call ELSE $9::uuid END
    WHERE call = $1::uuid
    RETURNING entry_id)
INSERT INTO audit_entry (call, ended, namespace, who, verb, target, origin, detail, changed)
SELECT $9::uuid, true, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bigint
WHERE NOT EXISTS (SELECT FROM ended)
ON CONFLICT (call) WHERE call IS NOT NULL DO NOTHING;

-- name: drop_audit_entry(call)
-- Nothing was done by it.
DELETE FROM audit_entry WHERE call = $1::uuid AND NOT ended;

-- name: drop_audit_entries(keep_s, limit)
DELETE FROM audit_entry WHERE (at, entry_id) IN (
    SELECT at, entry_id FROM audit_entry WHERE at < shard_now() - make_interval(secs => $1::float8)
    ORDER BY at, entry_id LIMIT $2::int);

-- name: audit_entries(before, before_id, namespace, limit)
-- Newest first, behind a place.
SELECT at, entry_id, namespace, who, verb, target, changed, origin, detail, ended, call::text
FROM audit_entry
WHERE (at, entry_id) < ($1::timestamptz, $2::bigint) AND ($3::text IS NULL OR namespace = $3::text)
ORDER BY at DESC, entry_id DESC LIMIT $4::int;
