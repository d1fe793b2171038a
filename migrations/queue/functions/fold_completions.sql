-- Gives ends of items to whoever applies them in this database, and makes ready what that releases.
--
-- Who listens on topic `acks/<n>` of namespace `_dag` may have a schema `dag_<n>` beside this one with a function
-- complete_here(dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[],
-- outputs text[], started_ats timestamptz[], workers text[], failures text[], queue_shard int, folds int) returning (taken uuid[],
-- released uuid[], ended uuid[], wide uuid[], inputs text[], made text[], awake uuid[]). It is called with its schema as the search_path. It applies what
-- it can without waiting for anybody: `taken` are the items of whose end nobody else has to be told, `released`
-- the disabled items of this shard that are revived for it now, with the `inputs` given to each (NULL: its own), `ended` the DAGs that end by that, and `wide` the
-- items that are left out since they would release much; `made` are new items, as `make_here` takes them, which are
-- revived at once; `awake` are runs that have something to be told, which who follows them hears of as of ends. `folds` says what may be applied: ends of nodes (1), and
-- ends of DAGs (2), of which who acks tells who waits for them; whether wide ones are taken (4), or refuse the
-- whole ack (8), which is then made again without them. `started_ats` and `workers` say since when and by whom each
-- was held, `failures` its error as JSON text where it has failed; they are as long as `item_ids`, or empty. Any fault,
-- there or in reviving, undoes all of that: an ack does not fail by it, its ends are told by completion items.
CREATE OR REPLACE FUNCTION fold_completions(
    item_ids uuid[], ack_topic_ids int[], attempt_numbers int[], outputs text[], contexts text[],
    started_ats timestamptz[], workers text[], failures text[], folds int, offer_topic_ids int[], offer_tokens uuid[],
    offer_lease_ss float8[], offer_maxima int[], offer_workers text[], offer_bytes_max bigint,
    OUT taken uuid[], OUT news told[], OUT wide uuid[])
LANGUAGE plpgsql VOLATILE SET enable_hashjoin = on AS $$
DECLARE
    items_max CONSTANT int := 2000;     -- of one ack, and of one DAG shard: others share its statement
    -- The types of complete_here's parameters, by their fixed numbers: names would be parsed for each ack.
    signature CONSTANT oidvector := '2951 1009 1007 2951 1007 1009 1185 1009 1009 23 23';
    home CONSTANT text := current_setting('search_path');
    path text;
    part record;
    given record;
    released uuid[] := '{}';
    inputs text[] := '{}';
    ended uuid[];
    awake uuid[];
BEGIN
    taken := '{}';
    FOR part IN
        SELECT t.schema, t.topic_id, (SELECT number FROM shard) AS here, x.*, nodes.*
        FROM (
            SELECT topic.topic_id, to_regnamespace('dag_' || substr(topic.name, 6)) AS schema
            FROM topic
            WHERE topic.topic_id = ANY (ack_topic_ids) AND topic.name ~ '^acks/[0-9]+$'
                AND topic.namespace_id = (SELECT namespace_id FROM namespace WHERE name = '_dag') OFFSET 0) AS t
        CROSS JOIN LATERAL (
            SELECT array_agg(y.id) AS ids, array_agg(y.attempts) AS attempts, array_agg(y.output) AS outputs,
                array_agg(y.started_at) AS started_ats, array_agg(y.worker) AS workers,
                array_agg(y.failure) AS failures, '[' || string_agg(coalesce(y.context, '{}'), ',') || ']' AS contexts
            FROM (
                SELECT u.id, u.attempts, u.output, u.context, u.started_at, u.worker, u.failure
                FROM unnest(item_ids, ack_topic_ids, attempt_numbers, fold_completions.outputs, contexts,
                        fold_completions.started_ats, fold_completions.workers, fold_completions.failures)
                    AS u(id, topic_id, attempts, output, context, started_at, worker, failure)
                WHERE u.topic_id = t.topic_id LIMIT items_max) AS y
            OFFSET 0) AS x
        -- All of them are parsed together: to parse them one by one takes twice as long.
        CROSS JOIN LATERAL (
            SELECT array_agg(y.dag) AS dags, array_agg(y.node) AS keys, array_agg(y.generation) AS generations
            FROM json_to_recordset(x.contexts::json) AS y(dag uuid, node text, generation int)
            OFFSET 0) AS nodes
        WHERE has_schema_privilege(t.schema, 'USAGE') AND EXISTS (
            SELECT FROM pg_proc
            WHERE proname = 'complete_here' AND proargtypes = signature AND pronamespace = t.schema)
    LOOP
        path := set_config('search_path', part.schema::text, true);
        SELECT c.o_taken AS taken, c.o_released AS released, c.o_ended AS ended, c.o_wide AS wide,
            c.o_inputs AS inputs, c.o_made AS made, c.o_awake AS awake
        INTO given
        FROM complete_here(
            part.dags, part.keys, part.generations, part.ids, part.attempts, part.outputs,
            part.started_ats, part.workers, part.failures, part.here, folds) AS c;
        path := set_config('search_path', home, true);
        taken := taken || given.taken;
        released := released || given.released;
        inputs := inputs || given.inputs;
        ended := ended || given.ended;
        awake := awake || given.awake;
        wide := wide || given.wide;
        IF given.made IS NOT NULL THEN
            released := released || make_here(given.made, part.topic_id);
            inputs := inputs || array_fill(NULL::text, ARRAY[cardinality(given.made)]);
        END IF;
    END LOOP;
    IF cardinality(released) = 1 THEN
        news := ARRAY[revive_one(
            released[1], inputs[1], offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers)];
    ELSIF cardinality(released) > 0 THEN
        news := ARRAY(SELECT r FROM revive_here(
            released, inputs, offer_topic_ids, offer_tokens, offer_lease_ss, offer_maxima, offer_workers,
            offer_bytes_max) AS r);
    END IF;
    IF ended IS NOT NULL THEN
        news := news || ARRAY(
            SELECT ROW(
                NULL, 0, NULL, e, true, false, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, false, NULL)::told
            FROM unnest(ended) AS e);
    END IF;
    IF awake IS NOT NULL THEN
        news := news || ARRAY(
            SELECT ROW(
                NULL, 0, NULL, a, false, false, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, false, NULL)::told
            FROM unnest(awake) AS a);
    END IF;
EXCEPTION WHEN OTHERS THEN
    taken := '{}';
    news := NULL;
    wide := NULL;
END $$;
