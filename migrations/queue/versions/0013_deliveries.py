"""Who holds a lease, and deliveries of DAGs' items that are told with their ends.

An ack adds `started_at` and `worker` of the delivery to the context of a DAG's item, and of no other.
"""

from migrations.script import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SQL = r"""
ALTER TABLE lease ADD COLUMN worker text;
ALTER TABLE attempt ADD COLUMN worker text;

-- Gives ends of acked items to whoever applies them in this database, and makes ready what that releases.
--
-- Who listens on topic `acks/<n>` of namespace `_dag` may have a schema `dag_<n>` beside this one with a function
-- complete_here(dag_ids uuid[], node_keys text[], generations int[], item_ids uuid[], attempt_numbers int[],
-- outputs text[], started_ats timestamptz[], workers text[], queue_shard int) returning (taken uuid[], released
-- uuid[]). It is called with its schema as the search_path. It applies what it can without waiting for anybody:
-- `taken` are the items of whose end nobody else has to be told, `released` the disabled items of this shard that
-- are revived for it now. Any fault, there or in reviving, undoes all of that: an ack does not fail by it, its
-- ends are told by completion items.
CREATE OR REPLACE FUNCTION fold_completions(
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
            listener.schema::text
            || '.complete_here(uuid[],text[],int[],uuid[],int[],text[],timestamptz[],text[],int)') IS NULL;
        IF here IS NULL THEN
            SELECT number INTO here FROM shard;
        END IF;
        SELECT array_agg((x.context ->> 'dag')::uuid) AS dags, array_agg(x.context ->> 'node') AS keys,
            array_agg((x.context ->> 'generation')::int) AS generations, array_agg(x.id) AS ids,
            array_agg(x.attempts) AS attempts, array_agg(x.output) AS outputs,
            array_agg((x.context ->> 'started_at')::timestamptz) AS started_ats,
            array_agg(x.context ->> 'worker') AS workers
        INTO part
        FROM (
            SELECT u.id, u.attempts, u.output, u.context::json AS context
            FROM unnest(item_ids, ack_topic_ids, attempt_numbers, fold_completions.outputs, contexts)
                AS u(id, topic_id, attempts, output, context)
            WHERE u.topic_id = listener.topic_id LIMIT items_max) AS x;
        PERFORM set_config('search_path', listener.schema::text, true);
        EXECUTE 'SELECT o_taken AS taken, o_released AS released
            FROM complete_here($1, $2, $3, $4, $5, $6, $7, $8, $9)'
            INTO given
            USING part.dags, part.keys, part.generations, part.ids, part.attempts, part.outputs, part.started_ats,
                part.workers, here;
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
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
