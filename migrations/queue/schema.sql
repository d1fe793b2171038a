-- A shard of the queue service, as `make schema` finds it after all migrations.
-- Read this to know the tables. Functions stand in functions/; comments, and reasons, in tables/ and functions/.

CREATE TYPE acked_item AS (
	id uuid,
	topic_id integer,
	remembered boolean,
	idempotency_key text,
	namespace_id integer,
	attempts integer,
	managed boolean,
	ack_topic_id integer,
	ack_context text
);

COMMENT ON TYPE acked_item IS 'Of an item that has ended by an ack, what somebody may ask for later.';

CREATE TYPE told AS (
	topic_id integer,
	priority integer,
	deliver_at timestamp with time zone,
	id uuid,
	revived boolean,
	is_ready boolean,
	token uuid,
	lease_until timestamp with time zone,
	payload text,
	metadata text,
	inputs text,
	headers text,
	attempt integer,
	enqueued_at timestamp with time zone,
	at_most_once boolean,
	dag text
);

COMMENT ON TYPE told IS 'A row without a topic names a DAG, by its id, that has ended by the ack; not revived, a run with news.';

CREATE TABLE item (
    id uuid NOT NULL,
    namespace_id integer NOT NULL,
    topic_id integer NOT NULL,
    priority integer NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    max_attempts integer NOT NULL,
    enqueued_at timestamp with time zone NOT NULL,
    deliver_at timestamp with time zone,
    expires_at timestamp with time zone,
    lease_s double precision NOT NULL,
    delay_s double precision,
    deliver_after timestamp with time zone,
    ttl_s double precision,
    backoff double precision[],
    at_most_once boolean NOT NULL,
    managed boolean NOT NULL,
    remembered boolean NOT NULL,
    ack_topic_id integer,
    payload text NOT NULL,
    metadata text,
    inputs text,
    headers text,
    ack_context text,
    idempotency_key text,
    error text,
    fairness_key text,
    ready_at timestamp with time zone,
    timeout_s double precision,
    is_deadline boolean
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='50000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE acked (
    made text NOT NULL,
    namespace_id integer NOT NULL,
    ids uuid[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE attempt (
    item_id uuid NOT NULL,
    namespace_id integer NOT NULL,
    attempt integer NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    error text,
    worker text
)
WITH (autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE audit_entry (
    entry_id bigint NOT NULL,
    at timestamp with time zone DEFAULT shard_now() NOT NULL,
    namespace text NOT NULL,
    who text NOT NULL,
    verb text NOT NULL,
    target text NOT NULL,
    changed bigint,
    origin text NOT NULL,
    detail text NOT NULL,
    call uuid,
    ended boolean DEFAULT true NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

ALTER TABLE audit_entry ALTER COLUMN entry_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME audit_entry_entry_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE cancelled_lease (
    item_id uuid NOT NULL,
    namespace_id integer NOT NULL,
    at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE dedup (
    namespace_id integer NOT NULL,
    key text NOT NULL,
    id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    until timestamp with time zone,
    lives_at integer
)
WITH (autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE deferred (
    due_at timestamp with time zone NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE ended (
    id uuid NOT NULL,
    namespace_id integer NOT NULL,
    outcome text NOT NULL
)
WITH (autovacuum_enabled='false', autovacuum_analyze_threshold='1000000');

CREATE TABLE ended_old (
    id uuid CONSTRAINT ended_id_not_null NOT NULL,
    namespace_id integer CONSTRAINT ended_namespace_id_not_null NOT NULL,
    outcome text CONSTRAINT ended_outcome_not_null NOT NULL
)
WITH (autovacuum_enabled='false', autovacuum_analyze_threshold='1000000');

CREATE TABLE ended_rotation (
    rotated_at timestamp with time zone NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE job_log (
    item_id uuid NOT NULL,
    namespace_id integer NOT NULL,
    seq bigint NOT NULL,
    token uuid NOT NULL,
    number integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    received_at timestamp with time zone NOT NULL,
    bytes integer NOT NULL,
    item_bytes bigint NOT NULL,
    lines text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE job_log_use (
    namespace_id integer NOT NULL,
    bytes bigint NOT NULL,
    last_seq bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

CREATE TABLE lane (
    topic_id integer NOT NULL,
    priority integer NOT NULL,
    key text NOT NULL,
    next_at timestamp with time zone NOT NULL,
    taken integer NOT NULL
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

CREATE TABLE lane_clock (
    topic_id integer NOT NULL,
    priority integer NOT NULL,
    v_at timestamp with time zone NOT NULL,
    is_shared boolean DEFAULT false NOT NULL
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

CREATE TABLE lease (
    token uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    namespace_id integer NOT NULL,
    topic_id integer NOT NULL,
    ids uuid[] NOT NULL,
    claimed_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    worker text,
    progress text,
    progress_at timestamp with time zone
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE namespace (
    namespace_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    settings text DEFAULT '{}'::text NOT NULL,
    declared boolean DEFAULT false NOT NULL,
    set_at timestamp with time zone
)
WITH (autovacuum_analyze_threshold='1000000');

ALTER TABLE namespace ALTER COLUMN namespace_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME namespace_namespace_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE operation (
    id uuid NOT NULL,
    namespace text NOT NULL,
    namespace_id integer,
    topic_id integer,
    kind text NOT NULL,
    filter text NOT NULL,
    state text NOT NULL,
    cursor text DEFAULT ''::text NOT NULL,
    total bigint NOT NULL,
    scanned bigint DEFAULT 0 NOT NULL,
    changed bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    shards integer[] NOT NULL,
    unplaced integer[] NOT NULL,
    cutoff timestamp with time zone NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    stepped_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

CREATE TABLE parked (
    id uuid NOT NULL,
    namespace_id integer NOT NULL,
    topic_id integer NOT NULL,
    reason text NOT NULL,
    managed boolean NOT NULL,
    parked_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE ready (
    topic_id integer NOT NULL,
    priority integer NOT NULL,
    deliver_at timestamp with time zone NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='50000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE shard (
    number integer NOT NULL,
    epoch bigint DEFAULT 1 NOT NULL,
    owner text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    incarnation uuid DEFAULT gen_random_uuid() NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    move text,
    slots int4multirange
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE shard_owner (
    owner text,
    epoch bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    wanted_by text,
    level integer DEFAULT 0 NOT NULL,
    level_epoch bigint DEFAULT 0 NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE stat_delta (
    topic_id integer NOT NULL,
    ready integer NOT NULL,
    delayed integer NOT NULL,
    leased integer NOT NULL,
    disabled integer NOT NULL,
    dead integer NOT NULL,
    bytes bigint DEFAULT 0 NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='1000000');

CREATE TABLE topic (
    topic_id integer NOT NULL,
    namespace_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    paused boolean DEFAULT false NOT NULL,
    min_share text,
    paused_at timestamp with time zone,
    min_share_at timestamp with time zone,
    retiring uuid,
    limits text,
    limits_at timestamp with time zone
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE topic_gate (
    namespace text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL COLLATE pg_catalog."C",
    tokens double precision,
    filled_at timestamp with time zone NOT NULL,
    slow_until timestamp with time zone,
    granted text DEFAULT '{}'::text NOT NULL,
    leased text DEFAULT '{}'::text NOT NULL,
    key text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    held text DEFAULT '{}'::text NOT NULL,
    idle_at timestamp with time zone
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE topic_stat (
    topic_id integer NOT NULL,
    ready bigint NOT NULL,
    delayed bigint NOT NULL,
    leased bigint NOT NULL,
    disabled bigint NOT NULL,
    dead bigint NOT NULL,
    bytes bigint DEFAULT 0 NOT NULL,
    folded_at timestamp with time zone DEFAULT shard_now() NOT NULL
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

ALTER TABLE topic ALTER COLUMN topic_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME topic_topic_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE unseen_cancel (
    namespace_id integer NOT NULL,
    cancels integer NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE worker (
    namespace text NOT NULL,
    name text NOT NULL,
    host text,
    version text,
    topics text NOT NULL,
    running integer,
    is_reported boolean NOT NULL,
    since timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    alive_until timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.2', autovacuum_vacuum_threshold='1000', autovacuum_analyze_threshold='1000000');

ALTER TABLE ONLY alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY audit_entry
    ADD CONSTRAINT audit_entry_pkey PRIMARY KEY (at, entry_id);

ALTER TABLE ONLY dedup
    ADD CONSTRAINT dedup_pkey PRIMARY KEY (namespace_id, key);

ALTER TABLE ONLY ended_old
    ADD CONSTRAINT ended_old_pkey PRIMARY KEY (id);

ALTER TABLE ONLY ended
    ADD CONSTRAINT ended_pkey PRIMARY KEY (id);

ALTER TABLE ONLY item
    ADD CONSTRAINT item_pkey PRIMARY KEY (id);

ALTER TABLE ONLY job_log
    ADD CONSTRAINT job_log_pkey PRIMARY KEY (item_id, namespace_id, seq);

ALTER TABLE ONLY job_log_use
    ADD CONSTRAINT job_log_use_pkey PRIMARY KEY (namespace_id);

ALTER TABLE ONLY lane_clock
    ADD CONSTRAINT lane_clock_pkey PRIMARY KEY (topic_id, priority);

ALTER TABLE ONLY lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (topic_id, priority, key);

ALTER TABLE ONLY namespace
    ADD CONSTRAINT namespace_name_key UNIQUE (name);

ALTER TABLE ONLY namespace
    ADD CONSTRAINT namespace_pkey PRIMARY KEY (namespace_id);

ALTER TABLE ONLY operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY parked
    ADD CONSTRAINT parked_pkey PRIMARY KEY (id);

ALTER TABLE ONLY shard
    ADD CONSTRAINT shard_pkey PRIMARY KEY (number);

ALTER TABLE ONLY topic_gate
    ADD CONSTRAINT topic_gate_pkey PRIMARY KEY (namespace, topic, key);

ALTER TABLE ONLY topic
    ADD CONSTRAINT topic_namespace_id_name_key UNIQUE (namespace_id, name);

ALTER TABLE ONLY topic
    ADD CONSTRAINT topic_pkey PRIMARY KEY (topic_id);

ALTER TABLE ONLY topic_stat
    ADD CONSTRAINT topic_stat_pkey PRIMARY KEY (topic_id);

ALTER TABLE ONLY unseen_cancel
    ADD CONSTRAINT unseen_cancel_pkey PRIMARY KEY (namespace_id);

ALTER TABLE ONLY worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (namespace, name);

CREATE INDEX acked_made ON acked USING btree (made);

CREATE INDEX attempt_age ON attempt USING btree (ended_at);

CREATE INDEX attempt_item ON attempt USING btree (item_id, ended_at);

CREATE UNIQUE INDEX audit_entry_call ON audit_entry USING btree (call) WHERE (call IS NOT NULL);

CREATE INDEX cancelled_lease_at ON cancelled_lease USING btree (at);

CREATE INDEX dedup_elsewhere ON dedup USING btree (lives_at, namespace_id, key) WHERE (lives_at IS NOT NULL);

CREATE INDEX dedup_until ON dedup USING btree (until) WHERE (until IS NOT NULL);

CREATE INDEX deferred_due ON deferred USING btree (due_at, id);

CREATE INDEX item_ack_topic ON item USING btree (ack_topic_id) WHERE ((ack_topic_id IS NOT NULL) AND (NOT managed));

CREATE INDEX item_expiry ON item USING btree (expires_at, id) WHERE (expires_at IS NOT NULL);

CREATE INDEX job_log_age ON job_log USING btree (received_at);

CREATE INDEX lane_next ON lane USING btree (topic_id, priority, next_at);

CREATE INDEX lease_expiry ON lease USING btree (expires_at);

CREATE INDEX lease_token ON lease USING btree (token);

CREATE INDEX namespace_limited ON namespace USING btree (namespace_id) WHERE (settings <> '{}'::text);

CREATE INDEX namespace_set ON namespace USING btree (namespace_id) WHERE (set_at IS NOT NULL);

CREATE INDEX operation_finished ON operation USING btree (finished_at) WHERE (state <> 'running'::text);

CREATE INDEX operation_listed ON operation USING btree (namespace, id) WHERE (namespace IS NOT NULL);

CREATE INDEX operation_running ON operation USING btree (stepped_at) WHERE (state = 'running'::text);

CREATE INDEX operation_unplaced ON operation USING btree (requested_at) WHERE (unplaced <> '{}'::integer[]);

CREATE INDEX parked_age ON parked USING btree (parked_at) WHERE (reason = 'dead'::text);

CREATE INDEX parked_dead ON parked USING btree (namespace_id, topic_id, parked_at) WHERE (reason = 'dead'::text);

CREATE INDEX ready_order ON ready USING btree (topic_id, priority, deliver_at, id);

CREATE INDEX topic_gate_idle ON topic_gate USING btree (idle_at) WHERE (idle_at IS NOT NULL);

CREATE INDEX topic_gate_slow ON topic_gate USING btree (slow_until) WHERE (slow_until IS NOT NULL);

CREATE INDEX topic_gate_throttled ON topic_gate USING btree (namespace, topic, key) WHERE (slow_until IS NOT NULL);

CREATE INDEX topic_limits ON topic USING btree (topic_id) WHERE (limits IS NOT NULL);

CREATE INDEX topic_min_share ON topic USING btree (topic_id) WHERE (min_share IS NOT NULL);

CREATE INDEX topic_paused ON topic USING btree (topic_id) WHERE paused;

CREATE INDEX topic_retiring ON topic USING btree (topic_id) WHERE (retiring IS NOT NULL);

CREATE INDEX topic_set ON topic USING btree (topic_id) WHERE ((paused_at IS NOT NULL) OR (min_share_at IS NOT NULL) OR (limits_at IS NOT NULL));
