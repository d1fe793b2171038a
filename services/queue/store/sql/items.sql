-- Items come in, come back and go. Membership first, then the item row: every statement that moves an item
-- takes the row of the narrow table that it leaves before it touches `item`.

-- name: enqueue(namespaces, topics, topic_ids, ack_namespaces, ack_topics, ack_topic_ids, priorities, lease_ss, nameds, extras, lasts, payloads, ack_contexts, ids, times_ms, window_ms, ahead_ms, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers, offer_bytes_max, early_s)
-- One flush of enqueues. A row of the arrays is a kind of item, all that its items have in common: `extra` is a JSON
-- object of the rarer columns, NULL for a plain item; `last` is where its items end among `ids` and `times_ms`, and
-- its payloads and contexts are joined by U+001E, contexts NULL where none has any. `times_ms` is the age that an id
-- claims, asked where callers made the ids (`named`). A disabled item has no deliver_at. `ended` is asked after the
-- insert, by take_back_ended, with a snapshot of its own: an insert that waited for the transaction that ended the
-- same id must see that end. An item of a lane is due at once: `promote` gives it its place. Items of a call that goes
-- to several shards count from `as_of`, the same for all, and by `early_s` at most before now. Where a number does not
-- stand for its names any more, or its topic is to be deleted, nothing is taken in, and `strangers` says which.
-- Offers are as those of `revive`; `handed` is what was leased to them, as JSON arrays of the columns of `told`.
WITH clock AS MATERIALIZED (
    SELECT at, (extract(epoch FROM at) * 1000)::bigint AS at_ms FROM (SELECT shard_now() AS at OFFSET 0) AS now),
asked AS MATERIALIZED (
    SELECT u.*, here.namespace_id, acks.is_here AS acks_here
    FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::float8[],
            $9::bool[], $10::text[], $11::int[], $12::text[], $13::text[])
        WITH ORDINALITY AS u(namespace, topic, topic_id, ack_namespace, ack_topic, ack_topic_id, priority, lease_s,
            named, extra, last, payloads, ack_contexts, nth)
    LEFT JOIN LATERAL (
        SELECT t.namespace_id FROM (
            SELECT namespace_id, name FROM topic WHERE topic.topic_id = u.topic_id AND retiring IS NULL OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS s
        WHERE t.name = u.topic AND s.name = u.namespace) AS here ON true
    LEFT JOIN LATERAL (
        SELECT true AS is_here FROM (
            SELECT namespace_id, name FROM topic WHERE topic.topic_id = u.ack_topic_id AND retiring IS NULL OFFSET 0) AS t
        CROSS JOIN LATERAL (SELECT name FROM namespace WHERE namespace.namespace_id = t.namespace_id OFFSET 0) AS s
        WHERE t.name = u.ack_topic AND s.name = u.ack_namespace) AS acks ON true),
strangers AS MATERIALIZED (
    SELECT topic_id FROM asked WHERE namespace_id IS NULL
    UNION ALL
    SELECT ack_topic_id FROM asked WHERE ack_topic_id IS NOT NULL AND acks_here IS NULL),
kinds AS MATERIALIZED (
    SELECT u.*, clock.*, e.*, CASE WHEN NOT e.disabled THEN greatest(
            coalesce(e.due_at, e.since + make_interval(secs => coalesce(e.delay_s, 0))), e.since) END AS deliver_at,
        ($14::uuid[])[coalesce(($11::int[])[u.nth - 1], 0) + 1:u.last] AS ids,
        ($15::bigint[])[coalesce(($11::int[])[u.nth - 1], 0) + 1:u.last] AS times_ms
    FROM clock, asked AS u,
        LATERAL (SELECT u.extra::jsonb AS x OFFSET 0) AS j,
        LATERAL (
            SELECT coalesce((x ->> 'disabled')::bool, false) AS disabled, (x ->> 'due_at')::timestamptz AS due_at,
                CASE WHEN x ? 'as_of' THEN least(greatest((x ->> 'as_of')::timestamptz,
                    clock.at - make_interval(secs => $24::float8)), clock.at) ELSE clock.at END AS since,
                (x ->> 'delay_s')::float8 AS delay_s, (x ->> 'ttl_s')::float8 AS ttl_s,
                coalesce((x ->> 'max_attempts')::int, 0) AS max_attempts,
                coalesce((x ->> 'at_most_once')::bool, false) AS at_most_once,
                coalesce((x ->> 'managed')::bool, false) AS managed, u.named OR x ? 'key' IS TRUE AS remembered,
                (x ->> 'backoff')::float8[] AS backoff, (x ->> 'timeout_s')::float8 AS timeout_s,
                (x ->> 'is_deadline')::bool AS is_deadline,
                x ->> 'metadata' AS metadata, x ->> 'inputs' AS inputs, x ->> 'headers' AS headers,
                x ->> 'key' AS key, x ->> 'lane' AS lane OFFSET 0) AS e
    WHERE NOT EXISTS (SELECT FROM strangers)),
arriving AS (
    SELECT kinds.*, unnest(kinds.ids) AS id, unnest(kinds.times_ms) AS time_ms,
        unnest(string_to_array(kinds.payloads, E'\x1e')) AS payload,
        unnest(string_to_array(kinds.ack_contexts, E'\x1e')) AS ack_context
    FROM kinds),
inserted AS (
    INSERT INTO item (id, namespace_id, topic_id, priority, lease_s, payload, enqueued_at, deliver_at, expires_at,
        max_attempts, at_most_once, managed, remembered, delay_s, deliver_after, ttl_s, backoff, ack_topic_id,
        metadata, inputs, headers, ack_context, idempotency_key, fairness_key, timeout_s, is_deadline)
    SELECT id, namespace_id, topic_id, priority, lease_s, payload, at, deliver_at,
        CASE WHEN NOT disabled THEN at + make_interval(secs => ttl_s) END, max_attempts, at_most_once, managed,
        remembered, delay_s, CASE WHEN disabled THEN due_at END, ttl_s, backoff, ack_topic_id, metadata, inputs,
        headers, ack_context, key, lane, timeout_s, is_deadline
    FROM arriving
    WHERE NOT named OR time_ms BETWEEN at_ms - $16::bigint AND at_ms + $17::bigint
    ON CONFLICT (id) DO NOTHING
    RETURNING id, namespace_id, topic_id, priority, deliver_at, enqueued_at, managed, remembered,
        deliver_at <= enqueued_at AND fairness_key IS NULL AS is_ready, octet_length(payload) AS bytes),
ended_before AS MATERIALIZED (
    SELECT t.id, t.outcome
    FROM (SELECT array_agg(id) FILTER (WHERE remembered) AS ids FROM inserted) AS r, take_back_ended(r.ids) AS t),
taken AS MATERIALIZED (SELECT * FROM inserted WHERE id <> ALL (ARRAY(SELECT id FROM ended_before))),
handed AS MATERIALIZED (
    SELECT h.*
    FROM (SELECT array_agg(id) AS ids FROM taken WHERE is_ready AND topic_id = ANY ($18::int[])) AS r,
        hand_arrived(r.ids, $18::int[], $19::uuid[], $20::float8[], $21::int[], $22::text[], $23::bigint) AS h),
to_ready AS (
    INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM taken
    WHERE is_ready AND id <> ALL (ARRAY(SELECT id FROM handed))),
to_deferred AS (
    INSERT INTO deferred SELECT deliver_at, id FROM taken WHERE NOT is_ready AND deliver_at IS NOT NULL),
to_parked AS (
    INSERT INTO parked (id, namespace_id, topic_id, reason, managed, parked_at)
    SELECT id, namespace_id, topic_id, 'disabled', managed, enqueued_at FROM taken WHERE deliver_at IS NULL),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, count(*) FILTER (WHERE is_ready),
        count(*) FILTER (WHERE NOT is_ready AND deliver_at IS NOT NULL), 0,
        count(*) FILTER (WHERE deliver_at IS NULL), 0, sum(bytes)
    FROM taken GROUP BY topic_id),
counted_handed AS (
    INSERT INTO stat_delta SELECT topic_id, -count(*), 0, count(*), 0, 0, 0 FROM handed GROUP BY topic_id)
SELECT (SELECT at FROM clock) AS at,
    CASE WHEN (SELECT count(*) FROM taken) < cardinality($14::uuid[]) THEN ARRAY(SELECT id::text
        FROM taken) END AS taken,
    (SELECT array_agg(topic_id) FROM strangers) AS strangers,
    (SELECT json_agg(json_build_array(topic_id, priority, deliver_at, id, revived, is_ready, token, lease_until, payload,
        metadata, inputs, headers, attempt, enqueued_at, at_most_once, dag))::text FROM handed) AS handed;

-- name: known(ids)
-- What the shard knows of ids that were not taken in: the living, and those that ended inside the window. The last
-- row of an id counts: what was cancelled under its lease is among the acked ones too.
SELECT i.id::text, i.namespace_id, 'living' AS outcome
FROM item i WHERE i.id = ANY ($1::uuid[])
UNION ALL
SELECT a.id::text, a.namespace_id, 'acked' FROM acked_among($1::uuid[]) AS a
UNION ALL
SELECT e.id::text, e.namespace_id, e.outcome FROM ended e WHERE e.id = ANY ($1::uuid[])
UNION ALL
SELECT e.id::text, e.namespace_id, e.outcome FROM ended_old e WHERE e.id = ANY ($1::uuid[]);

-- name: shard_time()
SELECT shard_now() AS at;

-- name: lock_keys(namespace_ids, keys)
-- Holds keys, in the order in which they are given: what is looked at next is how they stand.
SELECT d.key FROM unnest($1::int[], $2::text[]) AS u(namespace_id, key)
CROSS JOIN LATERAL (
    SELECT dedup.key FROM dedup WHERE dedup.namespace_id = u.namespace_id AND dedup.key = u.key FOR UPDATE) AS d;

-- name: take_keys(namespace_ids, keys, ids, fingerprints, slots, unique_keys)
-- Idempotency keys, first come first served; a key whose time ran out is free again, and one of `unique_keys` as soon
-- as its item has ended or is dead (they are locked before, by `lock_keys`: what is dead may just be put back).
-- Keys of slots that are not at home here are left alone: whoever takes slots
-- away holds `dedup` locked until that is committed.
INSERT INTO dedup (namespace_id, key, id, fingerprint)
SELECT namespace_id, key, id, fingerprint
FROM unnest($1::int[], $2::text[], $3::uuid[], $4::bytea[], $5::int[]) AS u(namespace_id, key, id, fingerprint, slot)
WHERE coalesce((SELECT slots FROM shard) @> u.slot, true)
ON CONFLICT (namespace_id, key) DO UPDATE
    SET id = excluded.id, fingerprint = excluded.fingerprint, until = NULL, lives_at = NULL
    WHERE dedup.until <= shard_now() OR (excluded.key = ANY ($6::text[]) AND (dedup.until IS NOT NULL
        OR (SELECT parked.reason = 'dead' FROM parked WHERE parked.id = dedup.id)))
RETURNING id::text;

-- name: key_holders(namespace_ids, keys, slots)
SELECT d.namespace_id, d.key, d.id::text, d.fingerprint
FROM unnest($1::int[], $2::text[], $3::int[]) AS u(namespace_id, key, slot)
CROSS JOIN LATERAL (
    SELECT * FROM dedup WHERE dedup.namespace_id = u.namespace_id AND dedup.key = u.key OFFSET 0) AS d
WHERE coalesce((SELECT slots FROM shard) @> u.slot, true);

-- name: lock_items(ids)
-- Item rows in id order, as every statement that locks several takes them.
SELECT id::text, namespace_id, topic_id, priority, attempts, max_attempts, backoff, at_most_once, managed,
    remembered, lease_s, ack_topic_id, idempotency_key, enqueued_at, expires_at <= shard_now() AS ttl_passed,
    timeout_s, CASE WHEN is_deadline THEN expires_at END AS deadline_at, shard_now() AS at
FROM item WHERE id = ANY ($1::uuid[]) ORDER BY item.id FOR UPDATE;

-- name: requeue(ids, costs, delay_ss, errors, metadatas)
-- Back to ready or deferred, for items whose membership this transaction has taken and whose rows it holds.
-- A redelivered item leaves a trace when it ends, so that a superseded holder can be told.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
found AS MATERIALIZED (
    SELECT w.*, i.place
    FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $5::text[]) AS w(id, cost, delay_s, error, metadata)
    CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = w.id OFFSET 0) AS i),
requeued AS (
    UPDATE item i SET attempts = i.attempts + found.cost, deliver_at = clock.at + make_interval(secs => found.delay_s),
        error = coalesce(found.error, i.error), metadata = coalesce(found.metadata, i.metadata), remembered = true
    FROM found, clock WHERE i.ctid = found.place
    RETURNING i.id, i.topic_id, i.priority, i.deliver_at, i.deliver_at <= clock.at
        AND i.fairness_key IS NULL AS is_ready),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM requeued WHERE is_ready),
to_deferred AS (INSERT INTO deferred SELECT deliver_at, id FROM requeued WHERE NOT is_ready),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, count(*) FILTER (WHERE is_ready), count(*) FILTER (WHERE NOT is_ready),
        -count(*), 0, 0
    FROM requeued GROUP BY topic_id)
SELECT id::text, topic_id, priority, deliver_at FROM requeued WHERE is_ready;

-- name: bury(ids, costs, errors, metadatas, folds)
-- Dead: the item stays, parked, until it is purged, redriven or past retention. Of ends that somebody wants to hear of,
-- `folds` says which may be applied here (see tell_dead).
WITH found AS MATERIALIZED (
    SELECT w.*, i.place
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) AS w(id, cost, error, metadata)
    CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = w.id OFFSET 0) AS i),
buried AS (
    UPDATE item i SET attempts = i.attempts + found.cost, error = coalesce(found.error, i.error),
        metadata = coalesce(found.metadata, i.metadata), expires_at = NULL, remembered = true
    FROM found WHERE i.ctid = found.place
    RETURNING i.id, i.namespace_id, i.topic_id, i.managed, i.attempts, i.ack_topic_id, i.ack_context, i.error),
to_parked AS (
    INSERT INTO parked (id, namespace_id, topic_id, reason, managed, parked_at)
    SELECT id, namespace_id, topic_id, 'dead', managed, shard_now() FROM buried),
counted AS (INSERT INTO stat_delta SELECT topic_id, 0, 0, -count(*), 0, count(*) FROM buried GROUP BY topic_id)
SELECT c.told AS asked, news.topic_id, news.priority, news.deliver_at, news.id::text AS id,
    news.revived AS is_revived, news.is_ready
FROM (SELECT array_agg(id) AS ids, array_agg(topic_id) AS topics, array_agg(ack_topic_id) AS ack_topics,
        array_agg(attempts) AS attempts, array_agg(error) AS errors, array_agg(ack_context) AS contexts,
        count(*)::int AS told
    FROM buried WHERE ack_topic_id IS NOT NULL) AS c
LEFT JOIN LATERAL tell_dead(c.ids, c.topics, c.ack_topics, c.attempts, c.errors, c.contexts, $5::int) AS news ON true;

-- name: remove(ids, outcomes, states, charges, whys)
-- The end of items whose membership this transaction has taken: expired, cancelled, or dead ones that leave.
-- `states` names the count each comes off; `charges` is 1 where the end was itself a delivery, which a claim past the
-- TTL was not (see `claim`); `whys` is told before the error of the last delivery. Who held one that was cancelled is
-- told of it by a row for a while. A dead item told its end when it died, so no second completion goes out for it.
WITH found AS MATERIALIZED (
    SELECT w.*, i.place
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::text[]) AS w(id, outcome, state, charge, why)
    CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = w.id OFFSET 0) AS i),
deleted AS (
    DELETE FROM item i USING found WHERE i.ctid = found.place
    RETURNING i.id, i.namespace_id, i.topic_id, i.ack_topic_id, i.ack_context,
        i.attempts + CASE WHEN found.charge > 0 AND i.expires_at <= shard_now() AND EXISTS (
            SELECT FROM lease WHERE lease.expires_at BETWEEN i.expires_at AND shard_now()
                AND lease.claimed_at = 'infinity' AND lease.ids @> ARRAY[i.id]) THEN 0 ELSE found.charge END AS attempts,
        nullif(concat_ws('; before: ', found.why, i.error), '') AS error, i.remembered, i.idempotency_key,
            found.outcome,
        found.state, octet_length(i.payload) AS bytes),
remembered AS (
    INSERT INTO ended (id, namespace_id, outcome) SELECT id, namespace_id, outcome FROM deleted
    ON CONFLICT (id) DO NOTHING),
key_places AS MATERIALIZED (
    SELECT x.place FROM deleted CROSS JOIN LATERAL (
        SELECT ctid AS place FROM dedup
        WHERE dedup.namespace_id = deleted.namespace_id AND dedup.key = deleted.idempotency_key
            AND dedup.id = deleted.id OFFSET 0) AS x
    WHERE deleted.idempotency_key IS NOT NULL),
keys_released AS (UPDATE dedup SET until = shard_now() + interval '24 hours' FROM key_places
    WHERE dedup.ctid = key_places.place),
news AS (
    INSERT INTO cancelled_lease (item_id, namespace_id, at)
    SELECT id, namespace_id, shard_now() FROM deleted WHERE outcome = 'cancelled' AND state = 'leased'),
counted AS (
    INSERT INTO stat_delta
    SELECT topic_id, -count(*) FILTER (WHERE state = 'ready'), -count(*) FILTER (WHERE state = 'delayed'),
        -count(*) FILTER (WHERE state = 'leased'), -count(*) FILTER (WHERE state = 'disabled'),
        -count(*) FILTER (WHERE state = 'dead'), -sum(bytes)
    FROM deleted GROUP BY topic_id)
SELECT e.o_topic_id, e.o_deliver_at, e.o_id::text
FROM (SELECT array_agg(id) AS ids, array_agg(topic_id) AS topics, array_agg(ack_topic_id) AS ack_topics,
        array_agg(outcome) AS outcomes, array_agg(attempts) AS attempts, array_agg(NULL::text) AS outputs,
        array_agg(error) AS errors, array_agg(ack_context) AS contexts
    FROM deleted WHERE ack_topic_id IS NOT NULL AND state <> 'dead') AS c,
    emit_completions(c.ids, c.topics, c.ack_topics, c.outcomes, c.attempts, c.outputs, c.errors, c.contexts) AS e;

-- name: revive(ids, namespace_ids, inputs, may_manage, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers, offer_bytes_max)
-- Disabled items become deliverable; delay and TTL count from here. Of a topic on offer the first items are leased at once
-- to the call that waits for them, as by `claim`: what is in `handed` never comes to `ready`. An offer is a topic, a
-- call's token, its lease_s (0: each item's own), how many items it takes and who makes it, of no more than
-- `offer_bytes_max` bytes together, one item at least; a paused topic's is not taken up (see services.queue.dispatch.direct_handoff).
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
places AS MATERIALIZED (
    SELECT p.place, w.inputs
    FROM unnest($1::uuid[], $2::int[], $3::text[]) AS w(id, namespace_id, inputs)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, namespace_id, reason, managed FROM parked WHERE parked.id = w.id OFFSET 0) AS p
    WHERE p.namespace_id = w.namespace_id AND p.reason = 'disabled' AND ($4::bool OR NOT p.managed)),
opened AS (DELETE FROM parked USING places WHERE parked.ctid = places.place RETURNING parked.id, places.inputs),
found AS MATERIALIZED (
    SELECT opened.inputs, i.place FROM opened
    CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = opened.id OFFSET 0) AS i),
revived AS (
    UPDATE item i SET inputs = coalesce(found.inputs, i.inputs),
        deliver_at = greatest(clock.at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
        expires_at = clock.at + make_interval(secs => i.ttl_s)
    FROM found, clock WHERE i.ctid = found.place
    RETURNING i.id, i.namespace_id, i.managed, i.topic_id, i.priority, i.deliver_at,
        i.deliver_at <= clock.at AND i.fairness_key IS NULL AS is_ready,
        CASE WHEN i.topic_id = ANY ($5::int[]) THEN i END AS whole,
        octet_length(i.payload) + coalesce(octet_length(i.metadata), 0) + coalesce(octet_length(i.inputs), 0)
            + coalesce(octet_length(i.headers), 0) + coalesce(octet_length(i.ack_context), 0) + 500 AS bytes),
handed AS MATERIALIZED (
    SELECT x.id, x.namespace_id, x.topic_id, o.token, o.worker,
        least(clock.at + make_interval(secs => least(x.timeout_s, coalesce(nullif(o.wanted_s, 0), x.lease_s))),
            x.deadline_at) AS lease_until
    FROM clock, unnest($5::int[], $6::uuid[], $7::float8[], $8::int[], $9::text[])
        AS o(topic_id, token, wanted_s, items_max, worker)
    CROSS JOIN LATERAL (
        SELECT row_number() OVER best AS nth, sum(revived.bytes) OVER best AS bytes_so_far,
            revived.id, revived.namespace_id, revived.topic_id, (revived.whole).lease_s,
            (revived.whole).timeout_s, CASE WHEN (revived.whole).is_deadline THEN (revived.whole).expires_at END AS deadline_at
        FROM revived WHERE revived.topic_id = o.topic_id AND revived.is_ready
        WINDOW best AS (ORDER BY revived.priority, revived.deliver_at, revived.id ROWS UNBOUNDED PRECEDING)
        ORDER BY revived.priority, revived.deliver_at, revived.id LIMIT o.items_max) AS x
    WHERE o.topic_id <> ALL (ARRAY(SELECT topic_id FROM topic WHERE paused))
        AND (x.nth = 1 OR x.bytes_so_far <= $10::bigint)),
leased AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker)
    SELECT token, lease_until, namespace_id, topic_id, array_agg(id), worker FROM handed
    GROUP BY token, lease_until, namespace_id, topic_id, worker),
handed_by_id AS MATERIALIZED (
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens,
        array_agg(lease_until ORDER BY id) AS lease_untils
    FROM handed),
to_ready AS (
    INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM revived, handed_by_id AS h
    WHERE is_ready AND h.ids[width_bucket(id, h.ids)] IS DISTINCT FROM id),
to_deferred AS (INSERT INTO deferred SELECT deliver_at, id FROM revived WHERE NOT is_ready),
counted AS (
    INSERT INTO stat_delta
    SELECT topics.topic_id, topics.ready - x.handed, topics.delayed, x.handed, -topics.items, 0
    FROM (
        SELECT topic_id, count(*) AS items, count(*) FILTER (WHERE is_ready) AS ready,
            count(*) FILTER (WHERE NOT is_ready) AS delayed
        FROM revived GROUP BY topic_id) AS topics
    CROSS JOIN LATERAL (SELECT count(*) AS handed FROM handed WHERE handed.topic_id = topics.topic_id) AS x)
SELECT revived.id::text, revived.namespace_id, revived.managed, revived.topic_id, revived.priority, revived.deliver_at,
    revived.is_ready, h.tokens[x.place]::text AS token, h.lease_untils[x.place] AS lease_until, w.payload, w.metadata,
    w.inputs, w.headers, w.attempts + 1 AS attempt, w.enqueued_at, w.at_most_once,
    CASE WHEN revived.managed THEN w.ack_context END AS dag
FROM revived, handed_by_id AS h
CROSS JOIN LATERAL (SELECT width_bucket(revived.id, h.ids) AS place OFFSET 0) AS b
CROSS JOIN LATERAL (SELECT CASE WHEN h.ids[b.place] = revived.id THEN b.place END AS place OFFSET 0) AS x
CROSS JOIN LATERAL (SELECT (CASE WHEN x.place IS NOT NULL THEN revived.whole END).*) AS w;

-- name: states(ids)
-- Where items stand, for the answer to a call that changed nothing.
SELECT i.id::text, i.namespace_id, i.managed, coalesce(p.reason, 'enabled') AS state
FROM item i LEFT JOIN LATERAL (SELECT reason FROM parked WHERE parked.id = i.id OFFSET 0) AS p ON true
WHERE i.id = ANY ($1::uuid[]);

-- part: places_part
-- Where the items that were found stand in `ready` and `deferred`.
ready_places AS MATERIALIZED (
    SELECT found.id, q.place FROM found CROSS JOIN LATERAL (
        SELECT ctid AS place FROM ready
        WHERE ready.topic_id = found.topic_id AND ready.priority = found.priority
            AND ready.deliver_at = found.deliver_at
            AND ready.id = found.id OFFSET 0) AS q
    ORDER BY q.place),
deferred_places AS MATERIALIZED (
    SELECT found.id, q.place FROM found CROSS JOIN LATERAL (
        SELECT ctid AS place FROM deferred WHERE deferred.due_at = found.deliver_at
            AND deferred.id = found.id OFFSET 0) AS q),

-- name: leave_queues(ids)
-- Takes the membership rows of items that are ready, deferred or parked (never those of a lease).
WITH found AS MATERIALIZED (SELECT id, topic_id, priority, deliver_at FROM item WHERE id = ANY ($1::uuid[])),
{places_part}
left_ready AS (DELETE FROM ready USING ready_places WHERE ready.ctid = ready_places.place RETURNING ready.id),
left_deferred AS (DELETE FROM deferred USING deferred_places
    WHERE deferred.ctid = deferred_places.place RETURNING deferred.id),
left_parked AS (DELETE FROM parked WHERE id = ANY ($1::uuid[]) RETURNING id, reason)
SELECT id::text, 'ready' AS state FROM left_ready
UNION ALL SELECT id::text, 'delayed' FROM left_deferred
UNION ALL SELECT id::text, reason FROM left_parked;

-- name: leave_past_ttl(ids)
-- As leave_queues, for items whose TTL has passed by now; the guard is stated where the row is taken.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
found AS MATERIALIZED (
    SELECT i.* FROM clock, unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (
        SELECT id, topic_id, priority, deliver_at, expires_at, is_deadline IS TRUE AS is_deadline
        FROM item WHERE item.id = w.id OFFSET 0) AS i
    WHERE i.expires_at <= clock.at),
{places_part}
left_ready AS (DELETE FROM ready USING ready_places WHERE ready.ctid = ready_places.place RETURNING ready.id),
left_deferred AS (DELETE FROM deferred USING deferred_places
    WHERE deferred.ctid = deferred_places.place RETURNING deferred.id)
SELECT gone.id::text, gone.state, found.is_deadline
FROM (SELECT id, 'ready' AS state FROM left_ready UNION ALL SELECT id, 'delayed' FROM left_deferred) AS gone
JOIN found ON found.id = gone.id;

-- name: leave_dead(ids)
DELETE FROM parked USING (
    SELECT q.place FROM unnest($1::uuid[]) AS w(id)
    CROSS JOIN LATERAL (SELECT ctid AS place, reason FROM parked WHERE parked.id = w.id OFFSET 0) AS q
    WHERE q.reason = 'dead' OFFSET 0) AS f
WHERE parked.ctid = f.place RETURNING parked.id::text;

-- name: place_tombstones(ids, namespace_ids)
-- First half of cancelling ids never seen: their rows, so that an enqueue in flight waits for us.
INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, lease_s, at_most_once, managed,
    remembered, payload)
SELECT id, namespace_id, 0, 0, 0, shard_now(), 0, false, false, true, ''
FROM unnest($1::uuid[], $2::int[]) AS u(id, namespace_id) ORDER BY id
ON CONFLICT (id) DO NOTHING
RETURNING id::text;

-- name: bury_tombstones(ids)
-- Second half: remembered as cancelled, and gone.
WITH remembered AS (
    INSERT INTO ended (id, namespace_id, outcome)
    SELECT i.id, i.namespace_id, 'cancelled' FROM item i WHERE i.id = ANY ($1::uuid[]) ON CONFLICT (id) DO NOTHING)
DELETE FROM item WHERE id = ANY ($1::uuid[]);

-- name: take_up_tombstones(ids)
-- The cap was reached: what was placed is taken up again, nothing is remembered.
DELETE FROM item WHERE id = ANY ($1::uuid[]);

-- name: park_dead(ids)
-- Gives back the place of dead items that were taken out together with others.
INSERT INTO parked (id, namespace_id, topic_id, reason, managed, parked_at)
SELECT id, namespace_id, topic_id, 'dead', managed, shard_now() FROM item WHERE id = ANY ($1::uuid[]);

-- name: charge_tombstones(namespace_id, cancels, cancels_max)
-- Refuses (no row) what would lift a namespace over its cap of unseen cancels for this rotation.
INSERT INTO unseen_cancel (namespace_id, cancels) SELECT $1::int, $2::int WHERE $2::int <= $3::int
ON CONFLICT (namespace_id) DO UPDATE SET cancels = unseen_cancel.cancels + excluded.cancels
    WHERE unseen_cancel.cancels + excluded.cancels <= $3::int
RETURNING cancels;

-- name: next_due(delays_from, leases_from, ttls_from, unplaced_s)
-- The next end of a delay, of a lease and of a TTL from given times on; NULL while there is none. And whether there
-- are operations to carry on: the one look that an idle shard costs its owner.
SELECT n.at, (SELECT due_at FROM deferred WHERE due_at >= $1::timestamptz ORDER BY due_at, id LIMIT 1) AS due_at,
    (SELECT expires_at FROM lease WHERE expires_at >= $2::timestamptz ORDER BY expires_at LIMIT 1) AS expires_at,
    (SELECT expires_at FROM item WHERE expires_at >= $3::timestamptz ORDER BY expires_at, id LIMIT 1) AS ttl_at,
    EXISTS (SELECT FROM operation WHERE state = 'running')
        OR EXISTS (SELECT FROM operation WHERE unplaced <> '{}'
            AND requested_at <= n.at - make_interval(secs => $4::float8)) AS operations
FROM (SELECT shard_now() AS at) AS n;

-- name: promote(limit, due_from)
-- Due items leave deferred for ready, bounded; hosts pass one another. Those of lanes get a place in turn.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
due AS (
    DELETE FROM deferred WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM deferred WHERE due_at <= (SELECT at FROM clock) AND due_at >= $2::timestamptz
        ORDER BY due_at, id LIMIT $1::int
        FOR UPDATE SKIP LOCKED))
    RETURNING id, due_at),
found AS MATERIALIZED (
    SELECT i.*, row_number() OVER (PARTITION BY i.fairness_key IS NULL ORDER BY due.due_at, due.id) AS nth
    FROM due CROSS JOIN LATERAL (
        SELECT ctid AS place, topic_id, priority, fairness_key FROM item WHERE item.id = due.id OFFSET 0) AS i),
turns AS MATERIALIZED (
    SELECT lane_places(x.topics, x.priorities, x.keys, clock.at) AS places
    FROM clock, (SELECT array_agg(topic_id ORDER BY nth) AS topics, array_agg(priority ORDER BY nth) AS priorities,
            array_agg(fairness_key ORDER BY nth) AS keys
        FROM found WHERE fairness_key IS NOT NULL) AS x),
promoted AS (
    UPDATE item i SET deliver_at = CASE WHEN found.fairness_key IS NULL THEN clock.at ELSE (SELECT places
    FROM turns)[found.nth] END,
        ready_at = CASE WHEN found.fairness_key IS NOT NULL THEN clock.at END
    FROM found, clock WHERE i.ctid = found.place
    RETURNING i.id, i.topic_id, i.priority, i.deliver_at),
counted AS (INSERT INTO stat_delta SELECT topic_id, count(*), -count(*), 0, 0, 0 FROM promoted GROUP BY topic_id),
to_ready AS (INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM promoted)
SELECT id::text, topic_id, priority, deliver_at FROM promoted;

-- name: past_ttl(after_at, after_id, limit)
-- Candidates only; each is looked at again under its membership row. Leased ones are passed over by cursor.
SELECT id::text, expires_at FROM item
WHERE expires_at <= (SELECT shard_now()) AND (expires_at, id) > ($1::timestamptz, $2::uuid)
ORDER BY item.expires_at, item.id LIMIT $3::int;
