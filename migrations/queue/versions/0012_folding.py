"""Acks that apply their completions where they are told of, if that is in the same database (ADR 14)."""

from migrations.script import run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SQL = r"""
-- What an ack has made ready: a completion item, or (`revived`) an item that its end has opened. `token` where it
-- is leased at once, with what the holder is given; not `is_ready` where it is delayed, or waits for a place.
CREATE TYPE told AS (
    topic_id int, priority int, deliver_at timestamptz, id uuid, revived boolean, is_ready boolean,
    token uuid, lease_until timestamptz, payload text, metadata text, inputs text, headers text, attempt int,
    enqueued_at timestamptz, at_most_once boolean, dag text);

-- Disabled items become deliverable, as by the verb `revive` for one who may manage them, and are leased to
-- offers. All of them or none: one that is not there, not disabled or locked by somebody else is an error.
CREATE FUNCTION revive_here(
    wanted uuid[], offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[])
RETURNS SETOF told LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM (
        SELECT FROM parked WHERE parked.id = ANY (wanted) AND reason = 'disabled' FOR UPDATE SKIP LOCKED) AS p
    HAVING count(*) = cardinality(wanted);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an item is not there to be revived' USING ERRCODE = 'no_data_found';
    END IF;
    RETURN QUERY
    WITH n AS MATERIALIZED (SELECT shard_now() AS at),
    p AS (DELETE FROM parked WHERE parked.id = ANY (wanted) RETURNING parked.id),
    g AS MATERIALIZED (
        SELECT i.place FROM p
        CROSS JOIN LATERAL (SELECT ctid AS place FROM item WHERE item.id = p.id OFFSET 0) AS i),
    u AS (
        UPDATE item i SET
            deliver_at = greatest(n.at + make_interval(secs => coalesce(i.delay_s, 0)), i.deliver_after),
            expires_at = n.at + make_interval(secs => i.ttl_s)
        FROM g, n WHERE i.ctid = g.place
        RETURNING i.id, i.namespace_id, i.managed, i.topic_id, i.priority, i.deliver_at,
            i.deliver_at <= n.at AND i.fairness_key IS NULL AS is_ready,
            CASE WHEN i.topic_id = ANY (offer_topic_ids) THEN i END AS whole),
    h AS MATERIALIZED (
        SELECT x.id, x.namespace_id, x.topic_id, o.token,
            n.at + make_interval(secs => coalesce(nullif(o.wanted_s, 0), x.lease_s)) AS lease_until
        FROM n, unnest(offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima)
            AS o(topic_id, token, wanted_s, items_max)
        CROSS JOIN LATERAL (
            SELECT u.id, u.namespace_id, u.topic_id, (u.whole).lease_s FROM u
            WHERE u.topic_id = o.topic_id AND u.is_ready ORDER BY u.priority, u.deliver_at, u.id
            LIMIT o.items_max) AS x
        WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))),
    l AS (
        INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)
        SELECT h.token, h.lease_until, h.namespace_id, h.topic_id, array_agg(h.id) FROM h
        GROUP BY h.token, h.lease_until, h.namespace_id, h.topic_id),
    r AS (
        INSERT INTO ready SELECT u.topic_id, u.priority, u.deliver_at, u.id FROM u
        WHERE u.is_ready AND NOT EXISTS (SELECT FROM h WHERE h.id = u.id)),
    d AS (INSERT INTO deferred SELECT u.deliver_at, u.id FROM u WHERE NOT u.is_ready),
    s AS (
        INSERT INTO stat_delta
        SELECT u.topic_id, count(*) FILTER (WHERE u.is_ready) - x.handed, count(*) FILTER (WHERE NOT u.is_ready),
            x.handed, -count(*), 0
        FROM u CROSS JOIN LATERAL (SELECT count(*) AS handed FROM h WHERE h.topic_id = u.topic_id) AS x
        GROUP BY u.topic_id, x.handed)
    SELECT u.topic_id, u.priority, u.deliver_at, u.id, true, u.is_ready, h.token, h.lease_until, (u.whole).payload,
        (u.whole).metadata, (u.whole).inputs, (u.whole).headers, (u.whole).attempts + 1, (u.whole).enqueued_at,
        (u.whole).at_most_once, CASE WHEN u.managed THEN (u.whole).ack_context END
    FROM u LEFT JOIN h ON h.id = u.id;
END $$;

-- Gives ends of acked items to whoever applies them in this database, and makes ready what that releases.
--
-- Who listens on topic `acks/<n>` of namespace `_dag` may have a schema `dag_<n>` beside this one with a function
-- complete_here(dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[],
-- outputs text[], queue_shard int) returning (taken uuid[], released uuid[]). It is called with its schema as the
-- search_path. It applies what it can without waiting for anybody: `taken` are the items of whose end nobody else
-- has to be told, `released` the disabled items of this shard that are revived for it now. Any fault, there or in
-- reviving, undoes all of that: an ack does not fail by it, its ends are told by completion items.
CREATE FUNCTION fold_completions(
    item_ids uuid[], ack_topic_ids int[], attempt_numbers int[], outputs text[], contexts text[],
    offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[],
    OUT taken uuid[], OUT revived told[])
LANGUAGE plpgsql VOLATILE SET enable_hashjoin = on AS $$
DECLARE
    items_max CONSTANT int := 500;      -- of one ack: others share its statement
    home CONSTANT text := current_setting('search_path');
    here int;
    listener record;
    part record;
    given record;
    released uuid[] := '{}';
BEGIN
    taken := '{}';
    FOR listener IN
        SELECT t.topic_id, to_regnamespace('dag_' || substr(t.name, 6)) AS schema
        FROM unnest(ARRAY(SELECT DISTINCT unnest(ack_topic_ids))) AS w(topic_id)
        CROSS JOIN LATERAL (
            SELECT topic.topic_id, topic.name, topic.namespace_id FROM topic
            WHERE topic.topic_id = w.topic_id OFFSET 0) AS t
        WHERE t.name ~ '^acks/[0-9]+$'
            AND t.namespace_id = (SELECT namespace_id FROM namespace WHERE name = '_dag')
    LOOP
        CONTINUE WHEN listener.schema IS NULL;
        CONTINUE WHEN NOT has_schema_privilege(listener.schema, 'USAGE');
        CONTINUE WHEN to_regprocedure(
            listener.schema::text || '.complete_here(uuid[],text[],int[],uuid[],int[],text[],int)') IS NULL;
        IF here IS NULL THEN
            SELECT number INTO here FROM shard;
        END IF;
        SELECT array_agg((x.context ->> 'dag')::uuid) AS dags, array_agg(x.context ->> 'node') AS keys,
            array_agg((x.context ->> 'generation')::int) AS generations, array_agg(x.id) AS ids,
            array_agg(x.attempts) AS attempts, array_agg(x.output) AS outputs
        INTO part
        FROM (
            SELECT u.id, u.attempts, u.output, u.context::json AS context
            FROM unnest(item_ids, ack_topic_ids, attempt_numbers, fold_completions.outputs, contexts)
                AS u(id, topic_id, attempts, output, context)
            WHERE u.topic_id = listener.topic_id LIMIT items_max) AS x;
        PERFORM set_config('search_path', listener.schema::text, true);
        EXECUTE 'SELECT o_taken AS taken, o_released AS released FROM complete_here($1, $2, $3, $4, $5, $6, $7)'
            INTO given
            USING part.dags, part.keys, part.generations, part.ids, part.attempts, part.outputs, here;
        PERFORM set_config('search_path', home, true);
        taken := taken || given.taken;
        released := released || given.released;
    END LOOP;
    IF cardinality(released) > 0 THEN
        revived := ARRAY(SELECT r FROM revive_here(
            released, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima) AS r);
    END IF;
EXCEPTION WHEN OTHERS THEN
    taken := '{}';
    revived := NULL;
END $$;

-- The ends of acked items that asked to be told of: folded, where `folds` and it can be, told by completion items
-- otherwise. What that made ready, leased to offers as far as those go.
CREATE FUNCTION tell_acked(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], attempt_numbers int[], outputs text[], contexts text[],
    folds boolean, offer_topic_ids int[], offer_tokens uuid[], offer_lease_ss float8[], offer_maxima int[])
RETURNS SETOF told LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    taken uuid[];
    revived told[];
    rest record;
    outcomes text[];
    errors text[];
BEGIN
    IF folds THEN
        SELECT f.taken, f.revived INTO taken, revived
        FROM fold_completions(item_ids, ack_topic_ids, attempt_numbers, outputs, contexts,
            offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima) AS f;
        IF cardinality(taken) > 0 THEN
            RETURN QUERY SELECT * FROM unnest(revived);
            IF cardinality(taken) = cardinality(item_ids) THEN
                RETURN;
            END IF;
            SELECT array_agg(u.id) AS ids, array_agg(u.topic_id) AS topics,
                array_agg(u.ack_topic_id) AS ack_topics, array_agg(u.attempts) AS attempts,
                array_agg(u.output) AS outputs, array_agg(u.context) AS contexts
            INTO rest
            FROM unnest(item_ids, topic_ids, ack_topic_ids, attempt_numbers, outputs, contexts)
                AS u(id, topic_id, ack_topic_id, attempts, output, context)
            WHERE u.id <> ALL (taken);
            item_ids := rest.ids;
            topic_ids := rest.topics;
            ack_topic_ids := rest.ack_topics;
            attempt_numbers := rest.attempts;
            outputs := rest.outputs;
            contexts := rest.contexts;
        END IF;
    END IF;
    outcomes := array_fill('acked'::text, ARRAY[cardinality(item_ids)]);
    errors := array_fill(NULL::text, ARRAY[cardinality(item_ids)]);
    IF cardinality(offer_topic_ids) = 0 THEN
        RETURN QUERY
        SELECT e.o_topic_id, 0, e.o_deliver_at, e.o_id, false, true, NULL::uuid, NULL::timestamptz, NULL::text,
            NULL::text, NULL::text, NULL::text, 1, e.o_deliver_at, false, NULL::text
        FROM emit_completions(
            item_ids, topic_ids, ack_topic_ids, outcomes, attempt_numbers, outputs, errors, contexts) AS e;
    ELSE
        RETURN QUERY
        SELECT e.o_topic_id, 0, e.o_deliver_at, e.o_id, false, true, e.o_token, e.o_lease_until, e.o_payload,
            NULL::text, NULL::text, NULL::text, 1, e.o_deliver_at, false, NULL::text
        FROM hand_completions(
            item_ids, topic_ids, ack_topic_ids, outcomes, attempt_numbers, outputs, errors, contexts,
            offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima) AS e;
    END IF;
END $$;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
