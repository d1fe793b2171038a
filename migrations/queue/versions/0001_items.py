"""Items and the narrow tables that say where each of them is.

An item's facts are written once, in `item`. Which of `ready`, `deferred`, `parked` or `lease` holds its id
is its state; an item is in exactly one of them.
"""

from migrations.script import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = r"""
-- The shard's only clock. Tests replace this function to move it.
CREATE FUNCTION shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- Who this schema is, for ids made here and for the fence of a move.
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    owner text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);

CREATE TABLE namespace (
    namespace_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    settings text NOT NULL DEFAULT '{}',
    declared boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE TABLE topic (
    topic_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int NOT NULL,
    name text NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    UNIQUE (namespace_id, name));
CREATE INDEX topic_paused ON topic (topic_id) WHERE paused;

CREATE TABLE item (
    id uuid PRIMARY KEY,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    priority int NOT NULL,
    attempts int NOT NULL DEFAULT 0,          -- deliveries that ended without an ack and cost one
    max_attempts int NOT NULL,                -- 0: no end
    enqueued_at timestamptz NOT NULL,
    deliver_at timestamptz,                   -- its key in ready or deferred; NULL while disabled
    expires_at timestamptz,
    lease_s double precision NOT NULL,
    delay_s double precision,                 -- from revive, while disabled
    deliver_after timestamptz,                -- not before, while disabled
    ttl_s double precision,
    backoff double precision[],               -- base_s, factor, max_s
    at_most_once boolean NOT NULL,
    managed boolean NOT NULL,                 -- a DAG's: changed through the DAG only
    remembered boolean NOT NULL,              -- leaves a row in ended
    ack_topic_id int,
    payload text NOT NULL,
    metadata text,
    inputs text,
    headers text,
    ack_context text,
    idempotency_key text,
    error text) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX item_expiry ON item (expires_at, id) WHERE expires_at IS NOT NULL;

CREATE TABLE ready (
    topic_id int NOT NULL,
    priority int NOT NULL,
    deliver_at timestamptz NOT NULL,
    id uuid NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_order ON ready (topic_id, priority, deliver_at, id);

CREATE TABLE deferred (
    due_at timestamptz NOT NULL,
    id uuid NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX deferred_due ON deferred (due_at, id);

CREATE TABLE parked (
    id uuid PRIMARY KEY,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    reason text NOT NULL,                     -- disabled, dead
    managed boolean NOT NULL,
    parked_at timestamptz NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
-- No id in it: a plan made while the table was small must not take it for the primary key.
CREATE INDEX parked_topic ON parked (topic_id, parked_at);
CREATE INDEX parked_age ON parked (parked_at) WHERE reason = 'dead';

-- One row per claimed group: the items of one dequeue call that share topic and end of lease. Ids that were
-- acked stay in the array until it ends: that is the memory behind `already_acked`.
CREATE TABLE lease (
    token uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    namespace_id int NOT NULL,
    topic_id int NOT NULL,
    ids uuid[] NOT NULL) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lease_token ON lease (token);
CREATE INDEX lease_expiry ON lease (expires_at);

-- What is gone but must be remembered for the id window; swapped and truncated by age.
CREATE TABLE ended (id uuid PRIMARY KEY, namespace_id int NOT NULL, outcome text NOT NULL, token uuid)
    WITH (autovacuum_enabled = false);
CREATE TABLE ended_old (LIKE ended INCLUDING ALL) WITH (autovacuum_enabled = false);
CREATE TABLE ended_rotation (rotated_at timestamptz NOT NULL);
INSERT INTO ended_rotation VALUES (clock_timestamp());
-- Cancels of ids never seen, per namespace since the last rotation: they are capped.
CREATE TABLE unseen_cancel (namespace_id int PRIMARY KEY, cancels int NOT NULL);

CREATE TABLE dedup (
    namespace_id int NOT NULL,
    key text NOT NULL,
    id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    until timestamptz,                        -- NULL while the item lives
    PRIMARY KEY (namespace_id, key));
CREATE INDEX dedup_until ON dedup (until) WHERE until IS NOT NULL;

-- Counts: appended in the transaction that changes them, folded off the hot path.
CREATE TABLE stat_delta (
    topic_id int NOT NULL,
    ready int NOT NULL, delayed int NOT NULL, leased int NOT NULL, disabled int NOT NULL, dead int NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE TABLE topic_stat (
    topic_id int PRIMARY KEY,
    ready bigint NOT NULL, delayed bigint NOT NULL, leased bigint NOT NULL, disabled bigint NOT NULL,
    dead bigint NOT NULL) WITH (fillfactor = 50);

-- The end of an enqueue with caller-made ids, run after its insert with a snapshot of its own: takes back
-- the rows whose ids ended before (the insert waited for a transaction that ended them, or came long after).
CREATE FUNCTION take_back_ended(wanted uuid[]) RETURNS TABLE (id uuid, outcome text)
LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT e.id, e.outcome FROM ended e WHERE e.id = ANY (wanted)
        UNION ALL
        SELECT e.id, e.outcome FROM ended_old e WHERE e.id = ANY (wanted)),
    undone AS (DELETE FROM item i WHERE i.id = ANY (ARRAY(SELECT g.id FROM gone g)))
    SELECT g.id, g.outcome FROM gone g;
END $$;

-- The one emitter: every end of an item that asked for it becomes a completion item on the same shard.
CREATE FUNCTION emit_completions(
    item_ids uuid[], topic_ids int[], ack_topic_ids int[], outcomes text[], attempt_numbers int[],
    outputs text[], errors text[], contexts text[])
RETURNS TABLE (o_topic_id int, o_deliver_at timestamptz, o_id uuid) LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    at timestamptz := shard_now();
    finished_at text := to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    time_hex text := lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0');
    -- Ids of the same form as headgate.ids makes: UUIDv7, the shard's number in the last 12 bits.
    head text := left(time_hex, 8) || '-' || right(time_hex, 4) || '-7';
    tail text := (SELECT lpad(to_hex(number), 3, '0') FROM shard);
BEGIN
    RETURN QUERY
    WITH u AS MATERIALIZED (
        SELECT (head || substr(gen_random_uuid()::text, 16, 18) || tail)::uuid AS new_id, x.*
        FROM unnest(item_ids, topic_ids, ack_topic_ids, outcomes, attempt_numbers, outputs, errors, contexts)
            AS x(item_id, topic_id, ack_topic_id, outcome, attempt, output, error, context)),
    i AS (
        INSERT INTO item (id, namespace_id, topic_id, priority, max_attempts, enqueued_at, deliver_at, lease_s,
            at_most_once, managed, remembered, payload)
        SELECT u.new_id, a.namespace_id, u.ack_topic_id, 0, 0, at, at, 60, false, false, false,
            '{"id":"' || u.item_id || '","topic":' || to_json(t.name) || ',"outcome":"' || u.outcome
            || '","attempt":' || u.attempt
            || coalesce(',"output":' || u.output, '')
            || coalesce(',"error":' || to_json(u.error), '')
            || ',"finished_at":"' || finished_at || '"'
            || coalesce(',"ack_context":' || u.context, '') || '}'
        FROM u
        CROSS JOIN LATERAL (SELECT namespace_id FROM topic WHERE topic.topic_id = u.ack_topic_id OFFSET 0) AS a
        CROSS JOIN LATERAL (SELECT name FROM topic WHERE topic.topic_id = u.topic_id OFFSET 0) AS t),
    s AS (
        INSERT INTO stat_delta SELECT u.ack_topic_id, count(*), 0, 0, 0, 0 FROM u GROUP BY u.ack_topic_id)
    INSERT INTO ready SELECT u.ack_topic_id, 0, at, u.new_id FROM u
    RETURNING ready.topic_id, ready.deliver_at, ready.id;
END $$;

INSERT INTO namespace (name, declared) VALUES ('default', true), ('_dag', true);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
