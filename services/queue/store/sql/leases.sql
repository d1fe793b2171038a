-- Leases: who holds what, and until when.
--
-- Everywhere below, arrays drive: `CROSS JOIN LATERAL (... OFFSET 0)` and `ctid` leave the planner no order but
-- one index lookup per element, also with the statistics of an empty table; and the time that an index is
-- searched by is `(SELECT shard_now())`, since a volatile function cannot bound a scan.
--
-- Only `claim` creates leases of what lies in ready. A statement that takes several rows of ready takes them as
-- they lie there, by ctid, so that no two can deadlock.

-- part: taken_part
-- What a claim takes out of `ready`: of each key's stretch the items that it names, where their topic is not paused.
taken AS (
    DELETE FROM ready WHERE ctid = ANY (ARRAY(
        SELECT r.place
        FROM unnest($1::int[], $2::int[], $3::timestamptz[], $4::uuid[], $5::timestamptz[], $6::uuid[])
            AS k(topic_id, priority, from_at, from_id, to_at, to_id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM ready
            WHERE ready.topic_id = k.topic_id AND ready.priority = k.priority
                AND (ready.deliver_at, ready.id) >= (k.from_at, k.from_id)
                AND (ready.deliver_at, ready.id) <= (k.to_at, k.to_id)
                AND ($7::uuid[])[width_bucket(ready.id, $7::uuid[])] = ready.id OFFSET 0) AS r
        WHERE k.topic_id <> ALL (ARRAY(SELECT topic_id FROM topic WHERE paused))))
    RETURNING id)

-- name: claim(topic_ids, priorities, from_ats, from_ids, to_ats, to_ids, ids, tokens, lease_ss, workers, known_at, known_at_json, bytes_each)
-- Leases stretches of topics' orders: of the ready items from one key to another, of one priority, those whose ids are
-- given, sorted and once each, so that one is searched for by halves. What decides is the DELETE of their rows in
-- ready: an id that another took, or a paused topic's, simply yields nothing. `tokens` and `lease_ss` have one element
-- for all, or one for each id; a lease_s of 0 stands for the item's own; `workers` maps tokens to names, NULL where no
-- call says its own. An item past its TTL goes into a group that ends at once and is never shown to anybody, so it is
-- claimed at no time ('infinity'): the reaper ends it as expired.
--
-- A row is a group of what was leased, in order of service, as pieces of JSON (`item_piece`;
-- `services.queue.store.dequeue_encoding` makes an answer of them), which costs a third of columns that are made into
-- JSON again. U+001E stands between two pieces: it cannot stand in JSON text. Most items of a claim came in one call:
-- `known_at_json` is the JSON of `known_at`, so that it is not made for each of them.
--
-- Where an item takes more than `bytes_each`, which is a part of what all answers have room for, nothing is done; the
-- error names its topic, and `claim_within` is asked instead.
WITH clock AS MATERIALIZED (SELECT shard_now() AS at),
{taken_part},
groups AS MATERIALIZED (
    SELECT x.token, x.lease_until, x.namespace_id, x.topic_id, array_agg(x.id) AS ids, count(*)::int AS items,
        count(*) FILTER (WHERE x.is_again)::int AS again,
        string_agg(x.piece, E'\x1e' ORDER BY x.priority, x.deliver_at, x.id) AS pieces,
        CASE WHEN count(*) > count(x.piece) THEN refuse_large(x.topic_id) END AS refused
    FROM (
        SELECT i.*, ($8::uuid[])[least(nth, cardinality($8::uuid[]))] AS token,
            CASE WHEN expires_at <= clock.at THEN clock.at
                ELSE least(clock.at + make_interval(secs => least(timeout_s, coalesce(
                    nullif(($9::float8[])[least(nth, cardinality($9::float8[]))], 0), lease_s))),
                    CASE WHEN is_deadline THEN expires_at END) END AS lease_until
        FROM clock, (
            SELECT width_bucket(id, $7::uuid[]) AS nth, id, namespace_id, topic_id, priority, deliver_at, lease_s,
                timeout_s, is_deadline, expires_at, attempts > 0 AS is_again,
                CASE WHEN item_bytes(item) <= $13::bigint THEN item_piece(item, $11::timestamptz, $12::text) END AS piece
            FROM item WHERE item.id = ANY (ARRAY(SELECT id FROM taken)) OFFSET 0) AS i) AS x
    GROUP BY x.token, x.lease_until, x.namespace_id, x.topic_id),
leased AS (
    INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, worker, claimed_at)
    SELECT groups.token, groups.lease_until, groups.namespace_id, groups.topic_id, groups.ids,
        $10::jsonb ->> groups.token::text,
        CASE WHEN groups.lease_until > clock.at THEN clock.at ELSE 'infinity' END
    FROM groups, clock),
counted AS (INSERT INTO stat_delta SELECT topic_id, -sum(items), 0, sum(items), 0, 0 FROM groups GROUP BY topic_id)
SELECT topic_id, token::text, lease_until, items, again, pieces
FROM groups WHERE lease_until > (SELECT at FROM clock);

-- name: claim_within(topic_ids, priorities, from_ats, from_ids, to_ats, to_ids, ids, tokens, lease_ss, workers, known_at, known_at_json, bytes_maxima, firsts, bytes_max)
-- As `claim`. What would make a call's answer longer than its `bytes_maxima`, or all answers together longer than
-- `bytes_max`, stays ready; a row without an end of a lease says of which call that is.
WITH {taken_part}
SELECT topic_id, token, lease_until, items, again, pieces FROM claim_within(
    ARRAY(SELECT id FROM taken), $7::uuid[], $8::uuid[], $9::float8[], coalesce($10::jsonb, '{}'), $11::timestamptz,
    $12::text, $13::bigint[], $14::uuid[], $15::bigint)
    AS claimed(topic_id, token, lease_until, items, again, once, pieces);

-- name: ack(ids, tokens, namespace_ids, lasts, outputs, asked, folds, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers, offer_bytes_max)
-- Lease groups first (locked: the reaper or another ack waits), then the items. An id that is held under its
-- token but has no row any more was acked under it before. `tokens` are sorted, once each; `ids` are those of the
-- first token, sorted and once each, so that one is searched for by halves, then those of the next; `lasts` says where
-- each token's end; `namespace_ids` has one element for all tokens, or one for each. `outputs` maps tokens to ids to JSON
-- texts: only under the token that holds an item is its output looked for. Where fewer than `asked` are acked, the
-- answer says which; of each topic it says how many. Of ends that somebody wants to hear of, `folds` says which may be applied here (see tell_acked);
-- what that made ready comes back, and which DAGs have ended. What leaves more behind than a count is the business of
-- `leave_behind`: all of it in here would cost every ack a third of its time. What its caller named and enqueued after a lease was claimed is another item, under the id of one
-- that was acked, and not of that lease. Offers are taken up as by `revive`.
WITH lease_groups AS MATERIALIZED (
    SELECT token, namespace_id, ids, claimed_at, worker FROM lease
    WHERE token = ANY ($2::uuid[]) ORDER BY token FOR UPDATE),
held AS MATERIALIZED (
    SELECT m.id, m.token, m.claimed_at FROM (
        SELECT a.token, a.claimed_at, a.asked, unnest(a.ids) AS id FROM (
            SELECT l.token, l.claimed_at, l.ids,
                ($1::uuid[])[coalesce(($4::int[])[l.nth - 1], 0) + 1:($4::int[])[l.nth]] AS asked
            FROM (SELECT lease_groups.*, width_bucket(lease_groups.token, $2::uuid[]) AS nth FROM lease_groups) AS l
            WHERE l.namespace_id = ($3::int[])[least(l.nth, cardinality($3::int[]))] OFFSET 0) AS a) AS m
    WHERE m.asked[width_bucket(m.id, m.asked)] = m.id),
deleted AS (
    DELETE FROM item i WHERE i.id = ANY (ARRAY(SELECT held.id FROM held)) AND (
        NOT i.remembered OR i.managed OR i.enqueued_at <= (SELECT min(claimed_at) FROM lease_groups)
        OR i.enqueued_at <= (SELECT max(lease_groups.claimed_at) FROM lease_groups WHERE i.id = ANY (lease_groups.ids)))
    RETURNING i.id, i.topic_id, octet_length(i.payload) AS bytes, i.remembered, i.managed, i.enqueued_at,
        CASE WHEN i.remembered OR i.ack_topic_id IS NOT NULL OR i.idempotency_key IS NOT NULL
            THEN ROW(i.id, i.topic_id, i.remembered, i.idempotency_key, i.namespace_id, i.attempts + 1, i.managed,
                i.ack_topic_id, i.ack_context)::acked_item END AS leaving),
by_topic AS MATERIALIZED (
    SELECT topic_id, count(*) AS items, sum(bytes) AS bytes, count(leaving) AS leaving FROM deleted GROUP BY topic_id),
counted AS (INSERT INTO stat_delta SELECT topic_id, 0, 0, -items, 0, 0, -bytes FROM by_topic)
SELECT CASE WHEN a.acked < $6::int THEN ARRAY(SELECT id::text FROM deleted) END AS acked_ids,
    CASE WHEN a.acked < $6::int THEN ARRAY(
        WITH enqueued_again AS MATERIALIZED (
            SELECT id, enqueued_at FROM deleted
            WHERE remembered AND NOT managed AND enqueued_at > (SELECT min(claimed_at) FROM lease_groups))
        SELECT held.id::text || held.token::text FROM held
        WHERE NOT EXISTS (
            SELECT FROM enqueued_again
            WHERE enqueued_again.id = held.id AND enqueued_again.enqueued_at > held.claimed_at)) END AS held,
    a.topic_ids, a.counts, behind.o_ends AS ends, behind.o_news AS news
FROM (SELECT coalesce(sum(items), 0) AS acked, sum(leaving) AS leaving, array_agg(topic_id) AS topic_ids,
    array_agg(items) AS counts FROM by_topic) AS a
LEFT JOIN LATERAL leave_behind(
    CASE WHEN a.leaving > 0 THEN ARRAY(SELECT leaving FROM deleted WHERE leaving IS DISTINCT FROM NULL) END,
    $2::uuid[], $5::jsonb, $7::int, $8::int[], $9::uuid[], $10::float8[], $11::int[], $12::text[], $13::bigint, true)
    AS behind ON true;

-- name: lock_leases(tokens)
SELECT token::text, namespace_id, topic_id, expires_at, claimed_at, worker, progress, progress_at, ids::text[] FROM lease
WHERE token = ANY ($1::uuid[]) ORDER BY lease.token FOR UPDATE;

-- name: leased_under(tokens)
SELECT token::text, expires_at, ids::text[] FROM lease WHERE token = ANY ($1::uuid[]);

-- name: held_under(tokens, ids)
-- Which of these pairs, by their places from 1, a lease group names now.
SELECT asked.place FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS asked(token, id, place)
WHERE EXISTS (SELECT FROM lease WHERE lease.token = asked.token AND asked.id = ANY (lease.ids) OFFSET 0);

-- name: leave_leases(tokens, ids)
-- Takes ids out of groups that this transaction has locked; a group left empty is gone.
WITH leaving AS MATERIALIZED (
    SELECT token, array_agg(id) AS gone FROM unnest($1::uuid[], $2::uuid[]) AS u(token, id) GROUP BY token),
found AS MATERIALIZED (
    SELECT l.place, l.ids, leaving.gone FROM leaving
    CROSS JOIN LATERAL (SELECT ctid AS place, ids FROM lease WHERE lease.token = leaving.token OFFSET 0) AS l
    WHERE l.ids && leaving.gone),
shortened AS (
    UPDATE lease l SET ids = ARRAY(SELECT m.id FROM unnest(l.ids) AS m(id) WHERE m.id <> ALL (found.gone))
    FROM found WHERE l.ctid = found.place AND NOT found.ids <@ found.gone)
DELETE FROM lease l USING found WHERE l.ctid = found.place AND found.ids <@ found.gone;

-- name: lease_again(tokens, lease_ss, namespace_ids, topic_ids, ids, claimed_ats, workers, progresses, progress_ats)
-- New groups under old tokens, ending `lease_s` from now. What was told of progress before goes along with its time;
-- what has none is told now.
INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids, claimed_at, worker, progress, progress_at)
SELECT token, shard_now() + make_interval(secs => lease_s), namespace_id, topic_id, array_agg(id), claimed_at, worker,
    progress, CASE WHEN progress IS NOT NULL THEN coalesce(progress_at, shard_now()) END
FROM unnest($1::uuid[], $2::float8[], $3::int[], $4::int[], $5::uuid[], $6::timestamptz[], $7::text[], $8::text[],
        $9::timestamptz[])
    AS u(token, lease_s, namespace_id, topic_id, id, claimed_at, worker, progress, progress_at)
GROUP BY token, lease_s, namespace_id, topic_id, claimed_at, worker, progress, progress_at;

-- name: take_expired(look_max, groups_max, ids_max, items_max, expired_from, after_namespace_id, window_ms)
-- Takes groups that ran out, as far as they name `ids_max` ids (to the end of the last group) and `items_max` items
-- that have not ended; of the group in which that is reached the first ids are taken and the others stay. `ids` of the
-- answer are those that have not ended: most were acked. An item that was enqueued after a group was claimed is
-- another under the id of one that was acked, and not of the group. Among the `look_max` groups that ran out first
-- namespaces take turns, beginning behind `after_namespace_id`, so that one with many leases does not keep back the
-- others'. What was acked is remembered from here on in `acked`, as long as an id of its age may be taken for one that
-- is still to come; completions for the DAG service are not, which nobody cancels.
WITH due AS MATERIALIZED (
    SELECT place, namespace_id, row_number() OVER (PARTITION BY namespace_id ORDER BY expires_at) AS turn
    FROM (
        SELECT ctid AS place, namespace_id, expires_at FROM lease
        WHERE expires_at <= (SELECT shard_now()) AND expires_at >= $5::timestamptz
        ORDER BY expires_at LIMIT $1::int) AS first),
locked AS MATERIALIZED (
    SELECT lease.ctid AS place, lease.token, lease.namespace_id, lease.topic_id, lease.claimed_at, lease.worker,
        lease.ids, due.turn, lease.namespace_id <= $6::int AS had_its_turn
    FROM due JOIN lease ON lease.ctid = due.place
    ORDER BY due.turn, lease.namespace_id <= $6::int, due.namespace_id LIMIT $2::int
    FOR UPDATE SKIP LOCKED),
sized AS (
    SELECT *, row_number() OVER served AS nth,
        sum(cardinality(ids)) OVER served - cardinality(ids) AS ids_before
    FROM locked WINDOW served AS (ORDER BY turn, had_its_turn, namespace_id ROWS UNBOUNDED PRECEDING)),
looked AS MATERIALIZED (
    SELECT sized.*,
        CASE WHEN found.ids = '{}' THEN '{}' ELSE ARRAY(
            SELECT id FROM unnest(sized.ids) WITH ORDINALITY AS member(id, position)
            WHERE id = ANY (found.ids) ORDER BY position) END AS living,
        CASE WHEN found.ids = '{}' THEN sized.ids ELSE ARRAY(
            SELECT id FROM unnest(sized.ids) AS member(id) WHERE id <> ALL (found.ids)) END AS acked
    FROM sized CROSS JOIN LATERAL (
        SELECT ARRAY(
            SELECT id FROM item WHERE item.id = ANY (sized.ids) AND item.enqueued_at <= sized.claimed_at) AS ids
        OFFSET 0) AS found
    WHERE sized.ids_before < $3::int),
bounded AS (
    SELECT *, $4::int - (sum(cardinality(living)) OVER (ORDER BY nth ROWS UNBOUNDED PRECEDING)
        - cardinality(living))::int AS room
    FROM looked),
taken AS MATERIALIZED (
    SELECT *, CASE WHEN cardinality(living) <= room THEN cardinality(ids)
            ELSE array_position(ids, living[room + 1]) - 1 END AS ids_taken
    FROM bounded WHERE room >= 0),
gathered AS (
    SELECT namespace_id, made, array_agg(id ORDER BY id) AS ids FROM (
        SELECT id, namespace_id, left(id::text, 12) AS made
        FROM taken CROSS JOIN LATERAL unnest(CASE WHEN ids_taken = cardinality(ids) THEN acked
            ELSE ARRAY(SELECT one FROM unnest(acked) AS one WHERE one = ANY (ids[:ids_taken])) END) AS id
        WHERE namespace_id <> (SELECT namespace_id FROM namespace WHERE name = '_dag')
            AND id >= (SELECT (lpad(to_hex((extract(epoch FROM shard_now()) * 1000)::bigint - $7::bigint), 12, '0')
                || repeat('0', 20))::uuid)) AS lately
    GROUP BY namespace_id, made),
remembered AS (
    INSERT INTO acked (made, namespace_id, ids)
    SELECT made, namespace_id, ids[part:part + 99]
    FROM gathered CROSS JOIN LATERAL generate_series(1, cardinality(ids), 100) AS part),
shortened AS (
    UPDATE lease SET ids = lease.ids[taken.ids_taken + 1:] FROM taken
    WHERE lease.ctid = taken.place AND taken.ids_taken > 0 AND cardinality(lease.ids) > taken.ids_taken),
emptied AS (
    DELETE FROM lease USING taken WHERE lease.ctid = taken.place AND cardinality(lease.ids) <= taken.ids_taken)
SELECT token::text, namespace_id, topic_id, claimed_at, worker, living[:room]::text[] AS ids, ids_taken,
    claimed_at < 'infinity' AS was_shown
FROM taken WHERE ids_taken > 0 ORDER BY nth;

-- name: remember_acked(ids, namespace_ids)
-- As `take_expired` does for what was acked before it looked: for what was acked between its look and its lock.
INSERT INTO acked (made, namespace_id, ids)
SELECT left(u.id::text, 12), u.namespace_id, ARRAY[u.id] FROM unnest($1::uuid[], $2::int[]) AS u(id, namespace_id);

-- name: acked_lately(ids)
-- Of ids that have no row any more, those that were acked under a lease that no sweep has taken yet: the groups remember
-- them. Asked only about ids that nothing else knows.
SELECT DISTINCT m.id::text, lease.namespace_id FROM lease, unnest(lease.ids) AS m(id)
WHERE lease.expires_at > '-infinity' AND lease.ids && $1::uuid[] AND m.id = ANY ($1::uuid[]);
