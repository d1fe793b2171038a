-- The two verbs by which items become ready while somebody waits for them, for flushes that have offers (see
-- services.queue.dispatch.direct_handoff). Without offers `revive` and `ack` do the same for less. What is said there of locks, plans
-- and order holds here word for word; an offer is a topic, a call's token, its lease_s (0: each item's own) and how
-- many items it takes, of no more than `offer_bytes_max` bytes together, one at least; a paused topic's is not taken up.

-- name: revive_handing(ids, namespace_ids, inputs, may_manage, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_bytes_max)
-- `revive` with offers: of a topic on offer the first items are leased at once to the call that waits for them, as by
-- `claim`; what is in `h` never comes to `ready`.
WITH n AS MATERIALIZED (SELECT shard_now() AS at),
f AS MATERIALIZED (
    SELECT p.place, w.inputs
    FROM unnest($1::uuid[], $2::int[], $3::text[]) AS w(id, namespace_id, inputs)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, namespace_id, reason, managed FROM parked WHERE parked.id = w.id OFFSET 0) AS p
    WHERE p.namespace_id = w.namespace_id AND p.reason = 'disabled' AND ($4::bool OR NOT p.managed)),
p AS (DELETE FROM parked USING f WHERE parked.ctid = f.place RETURNING parked.id, f.inputs),
g AS MATERIALIZED (
    SELECT p.inputs, i.place FROM p
    CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = p.id OFFSET 0) AS i),
u AS (
    UPDATE item i SET inputs = coalesce(g.inputs, i.inputs),
        deliver_at = greatest(n.at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
        expires_at = n.at + make_interval(secs => i.ttl_s)
    FROM g, n WHERE i.ctid = g.place
    RETURNING i.id, i.namespace_id, i.managed, i.topic_id, i.priority, i.deliver_at,
        i.deliver_at <= n.at AND i.fairness_key IS NULL AS is_ready,
        CASE WHEN i.topic_id = ANY ($5::int[]) THEN i END AS whole,
        octet_length(i.payload) + coalesce(octet_length(i.metadata), 0) + coalesce(octet_length(i.inputs), 0)
            + coalesce(octet_length(i.headers), 0) + coalesce(octet_length(i.ack_context), 0) + 500 AS bytes),
h AS MATERIALIZED (
    SELECT x.id, x.namespace_id, x.topic_id, o.token,
        n.at + make_interval(secs => coalesce(nullif(o.wanted_s, 0), x.lease_s)) AS lease_until
    FROM n, unnest($5::int[], $6::uuid[], $7::float8[], $8::int[]) AS o(topic_id, token, wanted_s, items_max)
    CROSS JOIN LATERAL (
        SELECT row_number() OVER best AS nth, sum(u.bytes) OVER best AS bytes_so_far,
            u.id, u.namespace_id, u.topic_id, (u.whole).lease_s
        FROM u WHERE u.topic_id = o.topic_id AND u.is_ready
        WINDOW best AS (ORDER BY u.priority, u.deliver_at, u.id ROWS UNBOUNDED PRECEDING)
        ORDER BY u.priority, u.deliver_at, u.id LIMIT o.items_max) AS x
    WHERE o.topic_id <> ALL (ARRAY(SELECT topic_id FROM topic WHERE paused))
        AND (x.nth = 1 OR x.bytes_so_far <= $9::bigint)),
l AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)
    SELECT token, lease_until, namespace_id, topic_id, array_agg(id) FROM h
    GROUP BY token, lease_until, namespace_id, topic_id),
r AS (
    INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM u
    WHERE is_ready AND NOT EXISTS (SELECT FROM h WHERE h.id = u.id)),
d AS (INSERT INTO deferred SELECT deliver_at, id FROM u WHERE NOT is_ready),
s AS (
    INSERT INTO stat_delta
    SELECT u.topic_id, count(*) FILTER (WHERE is_ready) - x.handed, count(*) FILTER (WHERE NOT is_ready), x.handed,
        -count(*), 0
    FROM u CROSS JOIN LATERAL (SELECT count(*) AS handed FROM h WHERE h.topic_id = u.topic_id) AS x
    GROUP BY u.topic_id, x.handed)
SELECT u.id::text, u.namespace_id, u.managed, u.topic_id, u.priority, u.deliver_at, u.is_ready, h.token::text,
    h.lease_until, w.payload, w.metadata, w.inputs, w.headers, w.attempts + 1 AS attempt, w.enqueued_at, w.at_most_once,
    CASE WHEN u.managed THEN w.ack_context END AS dag
FROM u LEFT JOIN h ON h.id = u.id
CROSS JOIN LATERAL (SELECT (CASE WHEN h.id IS NOT NULL THEN u.whole END).*) AS w;

-- name: ack_handing(ids, tokens, namespace_ids, lasts, outputs, asked, folds, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_bytes_max)
-- `ack` with offers, for completion items and for what is revived.
WITH g AS MATERIALIZED (
    SELECT token, namespace_id, ids, claimed_at, worker FROM lease
    WHERE token = ANY ($2::uuid[]) ORDER BY token FOR UPDATE),
h AS MATERIALIZED (
    SELECT m.id, m.token FROM (
        SELECT a.token, a.asked, unnest(a.ids) AS id FROM (
            SELECT l.token, l.ids, ($1::uuid[])[coalesce(($4::int[])[l.nth - 1], 0) + 1:($4::int[])[l.nth]] AS asked
            FROM (SELECT g.*, width_bucket(g.token, $2::uuid[]) AS nth FROM g) AS l
            WHERE l.namespace_id = ($3::int[])[least(l.nth, cardinality($3::int[]))] OFFSET 0) AS a) AS m
    WHERE m.asked[width_bucket(m.id, m.asked)] = m.id),
d AS (
    DELETE FROM item i WHERE i.id = ANY (ARRAY(SELECT h.id FROM h)) AND (
        NOT i.remembered OR i.managed OR i.enqueued_at <= (SELECT min(claimed_at) FROM g)
        OR i.enqueued_at <= (SELECT max(g.claimed_at) FROM g WHERE i.id = ANY (g.ids)))
    RETURNING i.id, i.topic_id, octet_length(i.payload) AS bytes,
        i.remembered OR i.ack_topic_id IS NOT NULL OR i.idempotency_key IS NOT NULL AS leaves_more, i.remembered,
        i.idempotency_key, i.namespace_id, i.attempts + 1 AS attempts, i.managed, i.ack_topic_id, i.ack_context,
        i.enqueued_at),
t AS MATERIALIZED (
    SELECT topic_id, count(*) AS items, sum(bytes) AS bytes, bool_or(leaves_more) AS leaves_more
    FROM d GROUP BY topic_id),
s AS (INSERT INTO stat_delta SELECT topic_id, 0, 0, -items, 0, 0, -bytes FROM t),
m AS MATERIALIZED (SELECT * FROM d WHERE (SELECT bool_or(leaves_more) FROM t) AND leaves_more),
e AS (
    INSERT INTO ended (id, namespace_id, outcome)
    SELECT id, namespace_id, 'acked' FROM m WHERE remembered ON CONFLICT (id) DO NOTHING),
y AS MATERIALIZED (
    SELECT x.place FROM m CROSS JOIN LATERAL (
        SELECT ctid AS place FROM dedup
        WHERE dedup.namespace_id = m.namespace_id AND dedup.key = m.idempotency_key OFFSET 0) AS x
    WHERE m.idempotency_key IS NOT NULL),
k AS (UPDATE dedup SET until = shard_now() + interval '24 hours' FROM y WHERE dedup.ctid = y.place),
x AS MATERIALIZED (
    SELECT array_agg(m.id) AS ids, array_agg(m.topic_id) AS topics, array_agg(m.ack_topic_id) AS ack_topics,
        array_agg(m.attempts) AS attempts, array_agg($5::jsonb -> l.token::text ->> m.id::text) AS outputs,
        array_agg(CASE WHEN m.managed AND m.ack_context LIKE '{"%' THEN
            left(m.ack_context, -1) || ',"started_at":' || to_json(l.claimed_at)
                || coalesce(',"worker":' || to_json(l.worker), '') || '}'
            ELSE m.ack_context END) AS contexts
    FROM m CROSS JOIN LATERAL (
        SELECT token, claimed_at, worker FROM g WHERE m.id = ANY (g.ids) ORDER BY claimed_at DESC LIMIT 1) AS l
    WHERE m.ack_topic_id IS NOT NULL),
c AS MATERIALIZED (
    SELECT e.* FROM x,
        tell_acked(x.ids, x.topics, x.ack_topics, x.attempts, x.outputs, x.contexts, $7::int,
            $8::int[], $9::uuid[], $10::float8[], $11::int[], $12::bigint) AS e)
SELECT CASE WHEN a.acked < $6::int THEN ARRAY(SELECT id::text FROM d) END AS acked_ids,
    CASE WHEN a.acked < $6::int THEN ARRAY(
        SELECT h.id::text || h.token::text FROM h JOIN g ON g.token = h.token WHERE NOT EXISTS (
            SELECT FROM d
            WHERE d.id = h.id AND d.remembered AND NOT d.managed AND d.enqueued_at > g.claimed_at)) END AS held,
    (SELECT cardinality(ids) FROM x) AS ends, c.*
FROM (SELECT coalesce(sum(items), 0) AS acked FROM t) AS a, (
    SELECT array_agg(topic_id) AS topic_ids, array_agg(priority) AS priorities, array_agg(deliver_at) AS deliver_ats,
        array_agg(id::text) AS ids, array_agg(revived) AS reviveds, array_agg(is_ready) AS are_ready,
        array_agg(token::text) AS handed_to, array_agg(lease_until) AS lease_untils, array_agg(payload) AS payloads,
        array_agg(metadata) AS metadatas, array_agg(inputs) AS inputs, array_agg(headers) AS headers,
        array_agg(attempt) AS attempts, array_agg(enqueued_at) AS enqueued_ats,
        array_agg(at_most_once) AS at_most_onces, array_agg(dag) AS dags
    FROM c) AS c;
