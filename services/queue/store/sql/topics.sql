-- Names, counts and pages.

-- name: make_namespaces(names, declared)
INSERT INTO namespace (name, declared) SELECT unnest($1::text[]), $2::bool
ON CONFLICT (name) DO UPDATE SET declared = true WHERE excluded.declared AND NOT namespace.declared;

-- name: namespace_names(after, limit)
-- A page of names, but the system's.
SELECT name FROM namespace WHERE name > $1::text AND name NOT LIKE '\_%' ORDER BY namespace.name LIMIT $2::int;

-- name: namespaces(names)
SELECT n.* FROM unnest($1::text[]) AS asked(name)
CROSS JOIN LATERAL (SELECT namespace_id, name, settings, set_at FROM namespace
WHERE namespace.name = asked.name OFFSET 0) AS n;

-- name: find_namespaces(names)
SELECT namespace_id, name FROM namespace WHERE name = ANY ($1::text[]);

-- name: notices()
-- Whether anything here has quotas, minimum shares, lanes or limits, or was cancelled under a lease a moment ago: asked
-- all the time, of indexes that mostly are empty.
SELECT EXISTS (SELECT FROM namespace WHERE settings <> '{}') AS quotas,
    EXISTS (SELECT FROM topic WHERE min_share IS NOT NULL) AS shares,
    EXISTS (SELECT FROM lane_clock) AS lanes,
    EXISTS (SELECT FROM cancelled_lease WHERE at > (SELECT shard_now()) - interval '5 seconds') AS cancels,
    EXISTS (SELECT FROM topic WHERE limits IS NOT NULL)
        OR EXISTS (SELECT FROM topic_gate WHERE slow_until > (SELECT shard_now())) AS limits;

-- name: limited()
-- The namespaces that have quotas.
SELECT name, settings, set_at FROM namespace WHERE settings <> '{}';

-- name: usage(namespace_ids)
-- What these namespaces (sorted) hold: leased items, all items, bytes of payloads. Totals are looked up by topic, and
-- the topics of what was appended since by number: a join would go through one for each row of the other.
WITH folded AS (
    SELECT t.namespace_id, s.* FROM unnest($1::int[]) AS asked(namespace_id)
    CROSS JOIN LATERAL (
        SELECT namespace_id, topic_id FROM topic WHERE topic.namespace_id = asked.namespace_id OFFSET 0) AS t
    CROSS JOIN LATERAL (SELECT * FROM topic_stat WHERE topic_stat.topic_id = t.topic_id OFFSET 0) AS s),
appended AS MATERIALIZED (
    SELECT topic_id, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, sum(disabled) AS disabled,
        sum(dead) AS dead, sum(bytes) AS bytes
    FROM stat_delta GROUP BY topic_id),
counted AS (
    SELECT namespace_id, ready, delayed, leased, disabled, dead, bytes FROM folded
    UNION ALL
    SELECT t.namespace_id, a.ready, a.delayed, a.leased, a.disabled, a.dead, a.bytes FROM appended AS a
    CROSS JOIN LATERAL (SELECT namespace_id FROM topic WHERE topic.topic_id = a.topic_id OFFSET 0) AS t
    WHERE ($1::int[])[width_bucket(t.namespace_id, $1::int[])] = t.namespace_id)
SELECT namespace_id, sum(leased)::bigint AS leased,
    sum(ready + delayed + leased + disabled + dead)::bigint AS items, sum(bytes)::bigint AS bytes
FROM counted GROUP BY namespace_id;

-- name: make_topics(namespaces, names)
-- Makes those that are not here, and takes back those that were to be deleted.
WITH made AS (
    INSERT INTO topic (namespace_id, name)
    SELECT n.namespace_id, u.name FROM unnest($1::text[], $2::text[]) AS u(namespace, name)
    CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = u.namespace OFFSET 0) AS n
    ON CONFLICT (namespace_id, name) DO UPDATE SET retiring = NULL WHERE topic.retiring IS NOT NULL
    RETURNING topic_id)
INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead) SELECT topic_id, 0, 0, 0, 0, 0 FROM made
ON CONFLICT (topic_id) DO UPDATE SET folded_at = excluded.folded_at;

-- name: find_topics(namespaces, names, also_retiring)
-- Under the number of one that is to be deleted nothing may be written.
SELECT t.topic_id, t.namespace_id, u.namespace, u.name
FROM unnest($1::text[], $2::text[]) AS u(namespace, name)
CROSS JOIN LATERAL (SELECT namespace_id FROM namespace WHERE namespace.name = u.namespace OFFSET 0) AS n
CROSS JOIN LATERAL (
    SELECT topic_id, namespace_id, retiring FROM topic
    WHERE topic.namespace_id = n.namespace_id AND topic.name = u.name OFFSET 0) AS t
WHERE t.retiring IS NULL OR $3::bool;

-- name: name_topics(topic_ids)
SELECT t.topic_id, n.name AS namespace, t.name AS topic
FROM unnest($1::int[]) AS asked(topic_id)
CROSS JOIN LATERAL (SELECT * FROM topic WHERE topic.topic_id = asked.topic_id OFFSET 0) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n;

-- name: min_shares()
SELECT topic_id, min_share, min_share_at FROM topic WHERE min_share IS NOT NULL;

-- name: topics_page(namespace, after, limit, scan_max)
-- The topics of a namespace behind a name that hold items or are paused, with their exact counts: folded totals, and what
-- was appended since. Looks at no more than scan_max topics; `last_name` is where that ended, NULL where the namespace
-- did. There is always a row. Totals and appended counts are put beside the names, not joined to them.
WITH looked AS MATERIALIZED (
    SELECT topic_id, name, paused FROM topic
    WHERE namespace_id = (SELECT namespace_id FROM namespace WHERE name = $1::text) AND name > $2::text
    ORDER BY topic.name LIMIT $4::int),
numbers AS MATERIALIZED (SELECT array_agg(topic_id ORDER BY topic_id) AS topic_ids FROM looked),
counted AS (
    SELECT topic_id, max(name) AS name, bool_or(paused) AS paused, sum(ready)::bigint AS ready,
        sum(delayed)::bigint AS delayed, sum(leased)::bigint AS leased, sum(disabled)::bigint AS disabled,
        sum(dead)::bigint AS dead
    FROM (
        SELECT topic_id, name, paused, 0 AS ready, 0 AS delayed, 0 AS leased, 0 AS disabled, 0 AS dead FROM looked
        UNION ALL
        SELECT s.topic_id, NULL, NULL, s.ready, s.delayed, s.leased, s.disabled, s.dead
        FROM looked CROSS JOIN LATERAL (
            SELECT * FROM topic_stat WHERE topic_stat.topic_id = looked.topic_id OFFSET 0) AS s
        UNION ALL
        SELECT topic_id, NULL, NULL, ready, delayed, leased, disabled, dead FROM stat_delta
        WHERE (SELECT topic_ids FROM numbers)[width_bucket(topic_id, (SELECT topic_ids FROM numbers))] = topic_id)
        AS parts
    GROUP BY topic_id),
active AS (
    SELECT * FROM counted WHERE paused OR ready + delayed + leased + disabled + dead <> 0
    ORDER BY counted.name LIMIT $3::int)
SELECT (SELECT name FROM looked ORDER BY looked.name OFFSET $4::int - 1 LIMIT 1) AS last_name, active.*
FROM (SELECT) AS always LEFT JOIN active ON true
ORDER BY active.name;

-- name: most_counts(limit)
-- Exact counts of the topics of this shard that hold most items, and of all others together (no topic_id).
WITH counted AS (
    SELECT topic_id, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, sum(disabled) AS disabled,
        sum(dead) AS dead
    FROM (
        SELECT topic_id, ready, delayed, leased, disabled, dead FROM topic_stat
        UNION ALL
        SELECT topic_id, ready, delayed, leased, disabled, dead FROM stat_delta) AS parts
    GROUP BY topic_id),
ranked AS (
    SELECT *, row_number() OVER (ORDER BY ready + delayed + leased + disabled + dead DESC, topic_id) AS nth
    FROM counted WHERE ready + delayed + leased + disabled + dead <> 0)
SELECT shown.*, coalesce(named.paused, false) AS paused
FROM (
    SELECT CASE WHEN nth <= $1::int THEN topic_id END AS topic_id, sum(ready)::bigint AS ready,
        sum(delayed)::bigint AS delayed, sum(leased)::bigint AS leased, sum(disabled)::bigint AS disabled,
        sum(dead)::bigint AS dead
    FROM ranked GROUP BY 1) AS shown
LEFT JOIN LATERAL (SELECT paused FROM topic WHERE topic.topic_id = shown.topic_id OFFSET 0) AS named ON true;

-- name: shard_counts()
-- What the shard holds in all.
SELECT coalesce(sum(ready), 0)::bigint AS ready, coalesce(sum(delayed), 0)::bigint AS delayed,
    coalesce(sum(leased), 0)::bigint AS leased, coalesce(sum(disabled), 0)::bigint AS disabled,
    coalesce(sum(dead), 0)::bigint AS dead
FROM (
    SELECT ready, delayed, leased, disabled, dead FROM topic_stat
    UNION ALL
    SELECT ready, delayed, leased, disabled, dead FROM stat_delta) AS parts;

-- name: ready_topics(after, limit)
-- The topics behind `after` that have something ready: one probe each.
WITH RECURSIVE head AS (
    (SELECT topic_id FROM ready WHERE topic_id > $1::int
    ORDER BY ready.topic_id, ready.priority, ready.deliver_at, ready.id LIMIT 1)
    UNION ALL
    SELECT next.topic_id FROM head
    CROSS JOIN LATERAL (
        SELECT topic_id FROM ready r WHERE r.topic_id > head.topic_id
        ORDER BY topic_id, priority, deliver_at, id LIMIT 1) AS next)
SELECT topic_id FROM head LIMIT $2::int;

-- name: fold_counts(limit)
WITH deltas AS (
    DELETE FROM stat_delta WHERE ctid = ANY (ARRAY(SELECT ctid FROM stat_delta LIMIT $1::int FOR UPDATE SKIP LOCKED))
    RETURNING *),
folded AS (
    INSERT INTO topic_stat (topic_id, ready, delayed, leased, disabled, dead, bytes)
    SELECT topic_id, sum(ready), sum(delayed), sum(leased), sum(disabled), sum(dead), sum(bytes) FROM deltas
    GROUP BY topic_id ORDER BY topic_id
    ON CONFLICT (topic_id) DO UPDATE SET ready = topic_stat.ready + excluded.ready,
        delayed = topic_stat.delayed + excluded.delayed, leased = topic_stat.leased + excluded.leased,
        disabled = topic_stat.disabled + excluded.disabled, dead = topic_stat.dead + excluded.dead,
        bytes = topic_stat.bytes + excluded.bytes, folded_at = excluded.folded_at)
SELECT count(*) AS folded FROM deltas;

-- name: peek(namespace, topic, topic_id, after_priority, after_deliver_at, after_id, from_priority, from_deliver_at, from_id, limit)
-- Keys behind `after`, in order; nothing is claimed, and a paused topic shows nothing. Of the priority of `from` only
-- what lies behind that (see services.queue.keys.scan_floor). A row of NULLs: the number does not stand for these names.
WITH here AS MATERIALIZED (
    SELECT t.paused FROM (SELECT * FROM topic WHERE topic_id = $3::int OFFSET 0) AS t
    CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
    WHERE t.name = $2::text AND n.name = $1::text)
SELECT priority, deliver_at, id FROM (
    (SELECT r.priority, r.deliver_at, r.id::text FROM (
        (SELECT priority, deliver_at, id FROM ready
        WHERE topic_id = $3::int AND (priority, deliver_at, id) > ($4::int, $5::timestamptz, $6::uuid)
            AND priority < $7::int
        ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT $10::int)
        UNION ALL
        (SELECT priority, deliver_at, id FROM ready
        WHERE topic_id = $3::int AND (priority, deliver_at, id) > ($7::int, $8::timestamptz, $9::uuid)
        ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT $10::int)) AS r
    WHERE NOT (SELECT paused FROM here)
    ORDER BY r.priority, r.deliver_at, r.id LIMIT $10::int)
    UNION ALL
    SELECT NULL, NULL, NULL WHERE NOT EXISTS (SELECT FROM here)) AS found;

-- name: peek_many(namespaces, topics, topic_ids, after_priorities, after_deliver_ats, after_ids, from_priorities, from_deliver_ats, from_ids, limits)
-- As `peek`, for several looks at once, each with a limit of its own; `nth` says which look found a key.
SELECT a.nth::int AS nth, r.priority, r.deliver_at, r.id::text
FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::timestamptz[], $6::uuid[], $7::int[],
        $8::timestamptz[], $9::uuid[], $10::int[])
    WITH ORDINALITY AS a(namespace, topic, topic_id, priority, deliver_at, id, from_priority, from_deliver_at,
        from_id, most, nth)
LEFT JOIN LATERAL (
    SELECT t.paused FROM (SELECT * FROM topic WHERE topic.topic_id = a.topic_id OFFSET 0) AS t
    CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS n
    WHERE t.name = a.topic AND n.name = a.namespace) AS here ON true
LEFT JOIN LATERAL (
    SELECT * FROM (
        (SELECT ready.priority, ready.deliver_at, ready.id FROM ready
        WHERE ready.topic_id = a.topic_id AND ready.priority < a.from_priority
            AND (ready.priority, ready.deliver_at, ready.id) > (a.priority, a.deliver_at, a.id)
        ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT a.most)
        UNION ALL
        (SELECT ready.priority, ready.deliver_at, ready.id FROM ready
        WHERE ready.topic_id = a.topic_id
            AND (ready.priority, ready.deliver_at, ready.id) > (a.from_priority, a.from_deliver_at, a.from_id)
        ORDER BY ready.priority, ready.deliver_at, ready.id LIMIT a.most)) AS u
    WHERE NOT here.paused
    ORDER BY u.priority, u.deliver_at, u.id LIMIT a.most) AS r ON true
WHERE r.id IS NOT NULL OR here.paused IS NULL
ORDER BY a.nth, r.priority, r.deliver_at, r.id;

-- name: oldest_ready(topic_ids, firsts, lasts, floors, lane_rows_max)
-- The first key of each priority that a topic uses, from `first` to `last`, none before `floor` (a loose index scan), and
-- since when the oldest of the priority is ready. Where lanes take turns a key is a place, and nothing lies before the
-- place that is being served; the oldest is looked for among the first keys (see services.queue.store.ready_ages).
WITH RECURSIVE clock AS MATERIALIZED (SELECT shard_now() AS at),
asked AS MATERIALIZED (
    SELECT u.topic_id, u.first, u.last, coalesce(c.v_at, u.floor) AS floor
    FROM unnest($1::int[], $2::int[], $3::int[], $4::timestamptz[]) AS u(topic_id, first, last, floor)
    LEFT JOIN LATERAL (
        SELECT v_at FROM lane_clock
        WHERE lane_clock.topic_id = u.topic_id AND lane_clock.priority = u.first AND u.first = u.last OFFSET 0) AS c
        ON true),
head AS (
    SELECT a.topic_id, a.last, h.priority, h.deliver_at
    FROM asked AS a
    CROSS JOIN LATERAL (
        SELECT priority, deliver_at FROM ready r
        WHERE r.topic_id = a.topic_id AND (r.priority, r.deliver_at) >= (a.first, a.floor) AND r.priority <= a.last
        ORDER BY priority, deliver_at, id LIMIT 1) AS h
    UNION ALL
    SELECT head.topic_id, head.last, h.priority, h.deliver_at FROM head
    CROSS JOIN LATERAL (
        SELECT priority, deliver_at FROM ready r
        WHERE r.topic_id = head.topic_id AND r.priority > head.priority AND r.priority <= head.last
        ORDER BY priority, deliver_at, id LIMIT 1) AS h)
SELECT h.topic_id, h.priority, h.deliver_at, c.v_at IS NOT NULL AS in_lanes, clock.at,
    greatest(extract(epoch FROM clock.at - coalesce(oldest.ready_at, h.deliver_at)), 0)::float8 AS age_s
FROM clock, head AS h
LEFT JOIN LATERAL (
    SELECT v_at FROM lane_clock
    WHERE lane_clock.topic_id = h.topic_id AND lane_clock.priority = h.priority OFFSET 0) AS c ON true
LEFT JOIN LATERAL (
    SELECT min(coalesce(i.ready_at, first_keys.deliver_at)) AS ready_at
    FROM (
        SELECT r.id, r.deliver_at FROM ready r
        WHERE r.topic_id = h.topic_id AND r.priority = h.priority AND r.deliver_at >= h.deliver_at
            AND c.v_at IS NOT NULL
        ORDER BY r.priority, r.deliver_at, r.id LIMIT $5::int) AS first_keys
    CROSS JOIN LATERAL (SELECT ready_at FROM item WHERE item.id = first_keys.id OFFSET 0) AS i) AS oldest ON true;

-- columns: item_columns
id::text AS id_text, priority, attempts, max_attempts, enqueued_at, deliver_at, expires_at, lease_s, at_most_once,
managed, payload, metadata, inputs, headers, ack_context, error, fairness_key

-- part: around_part
-- What is shown of an item `i` beside its own columns: the names of its topics and namespaces, and where it stands.
CROSS JOIN LATERAL (SELECT name FROM topic WHERE topic.topic_id = i.topic_id OFFSET 0) AS t
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = i.namespace_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT name, namespace_id FROM topic WHERE topic.topic_id = i.ack_topic_id OFFSET 0) AS a ON true
LEFT JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = a.namespace_id OFFSET 0) AS an ON true
LEFT JOIN LATERAL (
    SELECT id FROM ready WHERE ready.topic_id = i.topic_id AND ready.priority = i.priority
        AND ready.deliver_at = i.deliver_at AND ready.id = i.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (
    SELECT id FROM deferred WHERE deferred.due_at = i.deliver_at AND deferred.id = i.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT reason FROM parked WHERE parked.id = i.id OFFSET 0) AS p ON true

-- columns: around_columns
t.name AS topic, n.name AS namespace, a.name AS ack_topic, an.name AS ack_namespace,
CASE WHEN r.id IS NOT NULL THEN 'ready' WHEN d.id IS NOT NULL THEN 'delayed' ELSE coalesce(p.reason, 'leased') END AS state

-- name: item(id)
SELECT {item_columns:i}, {around_columns}
FROM item i
{around_part}
WHERE i.id = $1::uuid;

-- name: page(namespace, topic, state, after_id, limit, scan_max, bytes_max)
-- Items by id; a page looks at no more than scan_max rows, so a rare state may need several pages. As many as have no
-- more than `bytes_max` bytes, one at least; `there` says how many there would be otherwise.
SELECT * FROM (SELECT *, count(*) OVER () AS there, row_number() OVER by_id AS nth,
    sum(octet_length(payload) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(inputs), 0)
        + coalesce(octet_length(headers), 0) + coalesce(octet_length(ack_context), 0)
        + coalesce(octet_length(error), 0) + 1000) OVER by_id AS bytes_so_far
FROM (SELECT * FROM (
    SELECT i.id, {item_columns:i}, {around_columns}
    FROM (SELECT * FROM item WHERE id > $4::uuid ORDER BY id LIMIT $6::int) AS i
    {around_part}
    WHERE n.name = $1::text AND ($2::text IS NULL OR t.name = $2::text)) AS v
WHERE $3::text IS NULL OR v.state = $3::text
ORDER BY v.id LIMIT $5::int) AS found
WINDOW by_id AS (ORDER BY id ROWS UNBOUNDED PRECEDING)) AS page
WHERE nth = 1 OR bytes_so_far <= $7::bigint ORDER BY id;

-- name: page_end(after_id, scan_max)
-- The last id that a page of scan_max rows looks at, NULL when the table ends before.
SELECT id::text FROM item WHERE id > $1::uuid ORDER BY item.id OFFSET $2::int - 1 LIMIT 1;

-- name: hold_dead(ids)
-- Dead items that have keys, held where they are.
WITH held AS MATERIALIZED (
    SELECT p.* FROM unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (
        SELECT parked.id, parked.reason, parked.managed FROM parked WHERE parked.id = w.id FOR UPDATE) AS p)
SELECT i.id::text, i.namespace_id, n.name AS namespace, i.idempotency_key AS key
FROM held
CROSS JOIN LATERAL (SELECT id, namespace_id, idempotency_key FROM item WHERE item.id = held.id OFFSET 0) AS i
CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = i.namespace_id OFFSET 0) AS n
WHERE held.reason = 'dead' AND NOT held.managed AND i.idempotency_key IS NOT NULL;

-- name: without_keys(ids, namespace_ids, keys, slots)
-- Items whose keys are at home here, and are not theirs any more.
SELECT u.id::text
FROM unnest($1::uuid[], $2::int[], $3::text[], $4::int[]) AS u(id, namespace_id, key, slot)
LEFT JOIN LATERAL (
    SELECT dedup.id FROM dedup WHERE dedup.namespace_id = u.namespace_id AND dedup.key = u.key OFFSET 0) AS d ON true
WHERE coalesce((SELECT slots FROM shard) @> u.slot, true) AND d.id IS DISTINCT FROM u.id;

-- name: redrive(ids)
-- Dead items with fresh attempts, put back.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
places AS MATERIALIZED (
    SELECT q.place FROM unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, reason, managed FROM parked WHERE parked.id = w.id OFFSET 0) AS q
    WHERE q.reason = 'dead' AND NOT q.managed),
opened AS (DELETE FROM parked USING places WHERE parked.ctid = places.place RETURNING parked.id),
found AS MATERIALIZED (
    SELECT i.place FROM opened CROSS JOIN LATERAL (SELECT ctid AS place FROM item
    WHERE item.id = opened.id OFFSET 0) AS i),
redriven AS (
    UPDATE item i SET attempts = 0, deliver_at = clock.at, expires_at = clock.at + make_interval(secs => i.ttl_s)
    FROM found, clock WHERE i.ctid = found.place
    RETURNING i.id, i.topic_id, i.priority, i.deliver_at, i.fairness_key IS NULL AS is_ready),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM redriven WHERE is_ready),
to_deferred AS (INSERT INTO deferred SELECT deliver_at, id FROM redriven WHERE NOT is_ready),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, count(*) FILTER (WHERE is_ready), count(*) FILTER (WHERE NOT is_ready), 0, 0, -count(*)
    FROM redriven GROUP BY topic_id)
SELECT id::text, topic_id, priority, deliver_at, is_ready FROM redriven;
