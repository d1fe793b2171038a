-- A shard of the dag service, as `make schema` finds it after all migrations.
-- Read this to know the tables. Functions stand in functions/; comments, and reasons, in tables/ and functions/.

CREATE TABLE adding (
    first_no bigint NOT NULL,
    last_no bigint NOT NULL,
    started_at timestamp with time zone DEFAULT shard_now() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

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

CREATE TABLE change (
    dag_no bigint NOT NULL,
    last_event bigint NOT NULL,
    at timestamp with time zone DEFAULT shard_now() NOT NULL,
    nodes text,
    dag text
)
WITH (autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

CREATE TABLE cleanup (
    dag_no bigint NOT NULL,
    node_no bigint NOT NULL,
    of_no bigint,
    wave integer,
    undone_generation integer DEFAULT 0 NOT NULL,
    done_generation integer DEFAULT 0 NOT NULL,
    done_released_at timestamp with time zone,
    done_finished_at timestamp with time zone,
    done_payload text,
    done_output text,
    begun_generation integer DEFAULT 0 NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE dag (
    no bigint NOT NULL,
    id uuid NOT NULL,
    namespace text NOT NULL,
    key text,
    name text,
    state text DEFAULT 'running'::text NOT NULL,
    open boolean NOT NULL,
    held boolean NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    closed boolean DEFAULT false NOT NULL,
    on_failure text NOT NULL,
    deadline_s double precision,
    deadline_at timestamp with time zone,
    cancel_cause text,
    reason text,
    metadata text,
    created_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    finished_at timestamp with time zone,
    next_n integer DEFAULT 0 NOT NULL,
    structure_version bigint DEFAULT 0 NOT NULL,
    edges integer DEFAULT 0 NOT NULL,
    externals integer DEFAULT 0 NOT NULL,
    blocked integer DEFAULT 0 NOT NULL,
    released integer DEFAULT 0 NOT NULL,
    succeeded integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    skipped integer DEFAULT 0 NOT NULL,
    cancelled integer DEFAULT 0 NOT NULL,
    paused_at timestamp with time zone,
    depth integer DEFAULT 0 NOT NULL,
    parent_dag uuid,
    parent_node text,
    parent_generation integer,
    endings integer DEFAULT 0 NOT NULL,
    last_event bigint DEFAULT 0 NOT NULL,
    expanded integer DEFAULT 0 NOT NULL,
    cleanups integer DEFAULT 0 NOT NULL,
    cleanup_left integer DEFAULT 0 NOT NULL,
    cleanup_phase integer DEFAULT 0 NOT NULL,
    verdict text,
    started_lift integer DEFAULT 0 NOT NULL,
    path_lift integer DEFAULT 0 NOT NULL,
    content bytea,
    tolerated integer DEFAULT 0 NOT NULL,
    workflow text,
    ends_as text,
    CONSTRAINT dag_counts CHECK ((LEAST(blocked, released, succeeded, failed, skipped, cancelled) >= 0)),
    CONSTRAINT dag_state CHECK ((state = ANY ('{running,cancelling,succeeded,failed,cancelled}'::text[])))
)
WITH (fillfactor='50', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

ALTER TABLE dag ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dag_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE dag_value (
    dag_no bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    version bigint NOT NULL,
    writes uuid[] NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    prints uuid[] DEFAULT '{}'::uuid[] NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE dag_value_use (
    dag_no bigint NOT NULL,
    keys integer NOT NULL,
    bytes bigint NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE edge (
    up bigint NOT NULL,
    down bigint NOT NULL,
    satisfied boolean NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

CREATE TABLE event (
    dag_no bigint NOT NULL,
    event bigint NOT NULL,
    at timestamp with time zone DEFAULT shard_now() NOT NULL,
    kind text NOT NULL,
    key text NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    state text NOT NULL,
    output text,
    error text,
    data text,
    after bigint,
    reset integer,
    void integer
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE expansion (
    node_no bigint NOT NULL,
    child_no bigint NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE export_mark (
    namespace text NOT NULL,
    exported_until timestamp with time zone NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE external (
    dag_no bigint NOT NULL,
    node_key text NOT NULL,
    name text NOT NULL,
    declared boolean NOT NULL,
    resolved_at timestamp with time zone,
    failed boolean DEFAULT false NOT NULL,
    data text,
    deadline_s double precision,
    deadline_at timestamp with time zone,
    reason text
)
WITH (autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

CREATE TABLE kept (
    dag_no bigint NOT NULL,
    namespace text NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    phase text NOT NULL,
    due_at timestamp with time zone NOT NULL,
    CONSTRAINT kept_phase_check CHECK ((phase = ANY (ARRAY['due'::text, 'moving'::text, 'kept'::text, 'thawing'::text, 'dropping'::text])))
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE kept_change (
    dag_no bigint CONSTRAINT change_dag_no_not_null NOT NULL,
    last_event bigint CONSTRAINT change_last_event_not_null NOT NULL,
    at timestamp with time zone DEFAULT shard_now() CONSTRAINT change_at_not_null NOT NULL,
    nodes text,
    dag text
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE kept_edge (
    up bigint CONSTRAINT edge_up_not_null NOT NULL,
    down bigint CONSTRAINT edge_down_not_null NOT NULL,
    satisfied boolean CONSTRAINT edge_satisfied_not_null NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE kept_external (
    dag_no bigint CONSTRAINT external_dag_no_not_null NOT NULL,
    node_key text CONSTRAINT external_node_key_not_null NOT NULL,
    name text CONSTRAINT external_name_not_null NOT NULL,
    declared boolean CONSTRAINT external_declared_not_null NOT NULL,
    resolved_at timestamp with time zone,
    failed boolean DEFAULT false CONSTRAINT external_failed_not_null NOT NULL,
    data text,
    deadline_s double precision,
    deadline_at timestamp with time zone,
    reason text
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE kept_node (
    no bigint CONSTRAINT node_no_not_null NOT NULL,
    dag_no bigint CONSTRAINT node_dag_no_not_null NOT NULL,
    key text CONSTRAINT node_key_not_null NOT NULL,
    item_id uuid CONSTRAINT node_item_id_not_null NOT NULL,
    state text CONSTRAINT node_state_not_null NOT NULL,
    generation integer DEFAULT 1 CONSTRAINT node_generation_not_null NOT NULL,
    topic text CONSTRAINT node_topic_not_null NOT NULL,
    trigger text CONSTRAINT node_trigger_not_null NOT NULL,
    pass_outputs boolean CONSTRAINT node_pass_outputs_not_null NOT NULL,
    enqueued boolean CONSTRAINT node_enqueued_not_null NOT NULL,
    by_call boolean DEFAULT false CONSTRAINT node_by_call_not_null NOT NULL,
    fingerprint bytea CONSTRAINT node_fingerprint_not_null NOT NULL,
    up_left integer CONSTRAINT node_up_left_not_null NOT NULL,
    up_ok integer CONSTRAINT node_up_ok_not_null NOT NULL,
    up_failed integer CONSTRAINT node_up_failed_not_null NOT NULL,
    up_skipped integer CONSTRAINT node_up_skipped_not_null NOT NULL,
    up_cancelled integer CONSTRAINT node_up_cancelled_not_null NOT NULL,
    ext_left integer CONSTRAINT node_ext_left_not_null NOT NULL,
    ext_failed boolean CONSTRAINT node_ext_failed_not_null NOT NULL,
    attempts integer DEFAULT 0 CONSTRAINT node_attempts_not_null NOT NULL,
    created_at timestamp with time zone DEFAULT shard_now() CONSTRAINT node_created_at_not_null NOT NULL,
    released_at timestamp with time zone,
    finished_at timestamp with time zone,
    output text,
    error text,
    sub boolean DEFAULT false CONSTRAINT node_sub_not_null NOT NULL,
    run_on text,
    started_at timestamp with time zone,
    worker text,
    tolerate boolean DEFAULT false CONSTRAINT node_tolerate_not_null NOT NULL,
    timer boolean DEFAULT false CONSTRAINT node_timer_not_null NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE kept_node_spec (
    node_no bigint CONSTRAINT node_spec_node_no_not_null NOT NULL,
    item text CONSTRAINT node_spec_item_not_null NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE node (
    no bigint NOT NULL,
    dag_no bigint NOT NULL,
    key text NOT NULL,
    item_id uuid NOT NULL,
    state text NOT NULL,
    generation integer DEFAULT 1 NOT NULL,
    topic text NOT NULL,
    trigger text NOT NULL,
    pass_outputs boolean NOT NULL,
    enqueued boolean NOT NULL,
    by_call boolean DEFAULT false NOT NULL,
    fingerprint bytea NOT NULL,
    up_left integer NOT NULL,
    up_ok integer NOT NULL,
    up_failed integer NOT NULL,
    up_skipped integer NOT NULL,
    up_cancelled integer NOT NULL,
    ext_left integer NOT NULL,
    ext_failed boolean NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    released_at timestamp with time zone,
    finished_at timestamp with time zone,
    output text,
    error text,
    sub boolean DEFAULT false NOT NULL,
    run_on text,
    started_at timestamp with time zone,
    worker text,
    tolerate boolean DEFAULT false NOT NULL,
    timer boolean DEFAULT false NOT NULL,
    CONSTRAINT node_counts CHECK ((LEAST(up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left) >= 0)),
    CONSTRAINT node_state CHECK ((state = ANY ('{blocked,released,succeeded,failed,skipped,cancelled}'::text[])))
)
WITH (fillfactor='35', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

CREATE TABLE node_spec (
    node_no bigint NOT NULL,
    item text NOT NULL
)
WITH (autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_threshold='100000', autovacuum_analyze_threshold='1000000');

CREATE TABLE outbox (
    node_no bigint NOT NULL,
    generation integer NOT NULL,
    action text NOT NULL,
    item_id uuid NOT NULL,
    inputs text,
    created_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    retry text,
    CONSTRAINT outbox_action CHECK ((action = ANY ('{enqueue,revive,cancel,start,stop,report}'::text[])))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE published (
    dag_no bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    event bigint NOT NULL
)
WITH (fillfactor='70', autovacuum_analyze_threshold='1000000');

CREATE TABLE quota (
    namespace text NOT NULL,
    dags_max bigint,
    nodes_max bigint,
    edges_max bigint,
    updated_at timestamp with time zone DEFAULT shard_now() NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE reach (
    node_no bigint NOT NULL,
    after_down bigint DEFAULT '-1'::integer NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_analyze_threshold='1000000');

CREATE TABLE reopening (
    dag_no bigint NOT NULL,
    stage text NOT NULL,
    below text[] NOT NULL,
    roots text[] NOT NULL,
    by_call_too boolean NOT NULL,
    cleanups bigint[] NOT NULL,
    queue_shard integer NOT NULL,
    after_no bigint NOT NULL,
    started_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    CONSTRAINT reopening_stage_check CHECK ((stage = ANY (ARRAY['named'::text, 'roots'::text, 'count'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='200', autovacuum_analyze_threshold='1000000');

CREATE TABLE retention_mark (
    finished_at timestamp with time zone NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE run (
    dag_no bigint NOT NULL,
    namespace text NOT NULL,
    dag_id uuid NOT NULL,
    workflow_id text NOT NULL,
    type text NOT NULL,
    version text,
    input text,
    priority integer NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    secret_hash bytea NOT NULL,
    turn bigint DEFAULT 0 NOT NULL,
    turn_digest bytea,
    seen bigint DEFAULT 0 NOT NULL,
    last_event bigint DEFAULT 0 NOT NULL,
    last_told bigint DEFAULT 0 NOT NULL,
    open_steps text[] DEFAULT '{}'::text[] NOT NULL,
    signals integer DEFAULT 0 NOT NULL,
    received text DEFAULT '{}'::text NOT NULL,
    received_total integer DEFAULT 0 NOT NULL,
    markers text DEFAULT '{}'::text NOT NULL,
    made_by text,
    cancel_requested boolean DEFAULT false NOT NULL,
    stuck text,
    stuck_attempts integer DEFAULT 0 NOT NULL,
    stuck_since timestamp with time zone,
    output text,
    error text,
    continued_as uuid,
    resets integer DEFAULT 0 NOT NULL,
    CONSTRAINT run_state CHECK ((state = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'continued'::text])))
)
WITH (fillfactor='50', autovacuum_analyze_threshold='1000000');

CREATE TABLE scan (
    dag_no bigint NOT NULL,
    kind text NOT NULL,
    after_no bigint NOT NULL,
    CONSTRAINT scan_kind_check CHECK ((kind = ANY (ARRAY['cancel'::text, 'release'::text, 'cleanup'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='200', autovacuum_analyze_threshold='1000000');

CREATE TABLE schedule (
    no bigint NOT NULL,
    namespace text NOT NULL,
    id text NOT NULL,
    spec text NOT NULL,
    action text NOT NULL,
    plan text NOT NULL,
    overlap text NOT NULL,
    catchup_s double precision NOT NULL,
    jitter_s double precision NOT NULL,
    paused boolean NOT NULL,
    reason text,
    next_at timestamp with time zone,
    look_at timestamp with time zone,
    ticks bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    updated_at timestamp with time zone DEFAULT shard_now() NOT NULL,
    pruned_to bigint DEFAULT 0 NOT NULL,
    CONSTRAINT schedule_overlap CHECK ((overlap = ANY (ARRAY['skip'::text, 'buffer_one'::text, 'buffer_all'::text, 'cancel_other'::text, 'terminate_other'::text, 'allow'::text])))
)
WITH (fillfactor='70', autovacuum_analyze_threshold='1000000');

ALTER TABLE schedule ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME schedule_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE schedule_run (
    schedule_no bigint NOT NULL,
    dag_no bigint NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE shard (
    number integer NOT NULL,
    epoch bigint DEFAULT 1 NOT NULL,
    incarnation uuid DEFAULT gen_random_uuid() NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    move text
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

CREATE TABLE signal_count (
    dag_no bigint NOT NULL,
    name text NOT NULL,
    sent integer NOT NULL
)
WITH (fillfactor='70', autovacuum_analyze_threshold='1000000');

CREATE TABLE signal_id (
    dag_no bigint NOT NULL,
    id text NOT NULL,
    at timestamp with time zone DEFAULT shard_now() NOT NULL,
    asks boolean DEFAULT false NOT NULL,
    answer text
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE spread (
    node_no bigint NOT NULL,
    generation integer NOT NULL,
    after_down bigint DEFAULT '-1'::integer NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='200', autovacuum_analyze_threshold='1000000');

CREATE TABLE tally (
    id bigint NOT NULL,
    state text NOT NULL,
    dags bigint NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    cancelled bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

ALTER TABLE tally ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tally_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tick (
    schedule_no bigint NOT NULL,
    no bigint NOT NULL,
    kind text NOT NULL,
    at timestamp with time zone NOT NULL,
    through timestamp with time zone NOT NULL,
    slots bigint NOT NULL,
    decision text NOT NULL,
    reason text,
    run uuid,
    request uuid,
    decided_at timestamp with time zone DEFAULT shard_now() NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

CREATE TABLE timer (
    node_no bigint NOT NULL,
    generation integer NOT NULL,
    due_at timestamp with time zone NOT NULL,
    look_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_threshold='1000000');

CREATE TABLE waiting_slot (
    schedule_no bigint NOT NULL,
    no bigint NOT NULL,
    kind text NOT NULL,
    at timestamp with time zone NOT NULL,
    overlap text NOT NULL,
    tick bigint,
    request uuid
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_analyze_threshold='1000000');

ALTER TABLE waiting_slot ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME waiting_slot_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE workflow (
    namespace text NOT NULL,
    id text NOT NULL,
    dag_id uuid NOT NULL
)
WITH (autovacuum_analyze_threshold='1000000');

ALTER TABLE ONLY adding
    ADD CONSTRAINT adding_pkey PRIMARY KEY (first_no);

ALTER TABLE ONLY alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY audit_entry
    ADD CONSTRAINT audit_entry_pkey PRIMARY KEY (at, entry_id);

ALTER TABLE ONLY change
    ADD CONSTRAINT change_pkey PRIMARY KEY (dag_no, last_event);

ALTER TABLE ONLY cleanup
    ADD CONSTRAINT cleanup_pkey PRIMARY KEY (dag_no, node_no);

ALTER TABLE ONLY dag
    ADD CONSTRAINT dag_pkey PRIMARY KEY (no);

ALTER TABLE ONLY dag_value
    ADD CONSTRAINT dag_value_pkey PRIMARY KEY (dag_no, key);

ALTER TABLE ONLY dag_value_use
    ADD CONSTRAINT dag_value_use_pkey PRIMARY KEY (dag_no);

ALTER TABLE ONLY edge
    ADD CONSTRAINT edge_pkey PRIMARY KEY (up, down);

ALTER TABLE ONLY event
    ADD CONSTRAINT event_pkey PRIMARY KEY (dag_no, event);

ALTER TABLE ONLY expansion
    ADD CONSTRAINT expansion_pkey PRIMARY KEY (node_no, child_no);

ALTER TABLE ONLY export_mark
    ADD CONSTRAINT export_mark_pkey PRIMARY KEY (namespace);

ALTER TABLE ONLY external
    ADD CONSTRAINT external_pkey PRIMARY KEY (dag_no, node_key, name);

ALTER TABLE ONLY kept_change
    ADD CONSTRAINT kept_change_pkey PRIMARY KEY (dag_no, last_event);

ALTER TABLE ONLY kept_edge
    ADD CONSTRAINT kept_edge_pkey PRIMARY KEY (up, down);

ALTER TABLE ONLY kept_external
    ADD CONSTRAINT kept_external_pkey PRIMARY KEY (dag_no, node_key, name);

ALTER TABLE ONLY kept_node
    ADD CONSTRAINT kept_node_pkey PRIMARY KEY (no);

ALTER TABLE ONLY kept_node_spec
    ADD CONSTRAINT kept_node_spec_pkey PRIMARY KEY (node_no);

ALTER TABLE ONLY kept
    ADD CONSTRAINT kept_pkey PRIMARY KEY (dag_no);

ALTER TABLE ONLY node
    ADD CONSTRAINT node_pkey PRIMARY KEY (no);

ALTER TABLE ONLY node_spec
    ADD CONSTRAINT node_spec_pkey PRIMARY KEY (node_no);

ALTER TABLE ONLY outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (node_no, generation, action);

ALTER TABLE ONLY published
    ADD CONSTRAINT published_pkey PRIMARY KEY (dag_no, key);

ALTER TABLE ONLY quota
    ADD CONSTRAINT quota_pkey PRIMARY KEY (namespace);

ALTER TABLE ONLY reach
    ADD CONSTRAINT reach_pkey PRIMARY KEY (node_no);

ALTER TABLE ONLY reopening
    ADD CONSTRAINT reopening_pkey PRIMARY KEY (dag_no);

ALTER TABLE ONLY run
    ADD CONSTRAINT run_pkey PRIMARY KEY (dag_no);

ALTER TABLE ONLY scan
    ADD CONSTRAINT scan_pkey PRIMARY KEY (dag_no, kind);

ALTER TABLE ONLY schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (no);

ALTER TABLE ONLY schedule_run
    ADD CONSTRAINT schedule_run_pkey PRIMARY KEY (schedule_no, dag_no);

ALTER TABLE ONLY shard
    ADD CONSTRAINT shard_pkey PRIMARY KEY (number);

ALTER TABLE ONLY signal_count
    ADD CONSTRAINT signal_count_pkey PRIMARY KEY (dag_no, name);

ALTER TABLE ONLY signal_id
    ADD CONSTRAINT signal_id_pkey PRIMARY KEY (dag_no, id);

ALTER TABLE ONLY spread
    ADD CONSTRAINT spread_pkey PRIMARY KEY (node_no);

ALTER TABLE ONLY tally
    ADD CONSTRAINT tally_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tick
    ADD CONSTRAINT tick_pkey PRIMARY KEY (schedule_no, no);

ALTER TABLE ONLY timer
    ADD CONSTRAINT timer_pkey PRIMARY KEY (node_no);

ALTER TABLE ONLY waiting_slot
    ADD CONSTRAINT waiting_slot_pkey PRIMARY KEY (schedule_no, no);

ALTER TABLE ONLY workflow
    ADD CONSTRAINT workflow_pkey PRIMARY KEY (namespace, id);

CREATE UNIQUE INDEX audit_entry_call ON audit_entry USING btree (call) WHERE (call IS NOT NULL);

CREATE INDEX cleanup_of ON cleanup USING btree (of_no) WHERE (of_no IS NOT NULL);

CREATE INDEX cleanup_wave ON cleanup USING btree (dag_no, wave) WHERE (wave IS NOT NULL);

CREATE INDEX dag_deadline ON dag USING btree (deadline_at) WHERE ((state = 'running'::text) AND (deadline_at IS NOT NULL));

CREATE INDEX dag_ended ON dag USING btree (finished_at, id) WHERE (finished_at IS NOT NULL);

CREATE UNIQUE INDEX dag_id ON dag USING btree (id);

CREATE UNIQUE INDEX dag_key ON dag USING btree (namespace, key) WHERE (key IS NOT NULL);

CREATE INDEX dag_listed ON dag USING btree (namespace, id) WHERE (namespace IS NOT NULL);

CREATE INDEX dag_listed_by_name ON dag USING btree (namespace, name, id) WHERE (name IS NOT NULL);

CREATE INDEX dag_listed_by_state ON dag USING btree (namespace, state, id) WHERE (namespace IS NOT NULL);

CREATE INDEX dag_live ON dag USING btree (state) WHERE (state = ANY (ARRAY['running'::text, 'cancelling'::text]));

CREATE INDEX dag_with_externals ON dag USING btree (namespace, id) WHERE ((state = 'running'::text) AND (externals > 0));

CREATE INDEX edge_down ON edge USING btree (down, up) WHERE (down IS NOT NULL);

CREATE INDEX event_reset ON event USING btree (dag_no, key) WHERE ((kind = 'run'::text) AND (state = 'reset'::text));

CREATE UNIQUE INDEX event_step ON event USING btree (dag_no, key) WHERE ((after IS NOT NULL) AND (kind = 'step'::text));

CREATE INDEX event_void ON event USING btree (dag_no, key) WHERE ((void IS NOT NULL) AND (after IS NOT NULL));

CREATE INDEX external_deadline ON external USING btree (deadline_at) WHERE ((deadline_at IS NOT NULL) AND (resolved_at IS NULL));

CREATE INDEX external_open ON external USING btree (dag_no, node_key, name) WHERE (declared AND (resolved_at IS NULL));

CREATE INDEX external_undeclared ON external USING btree (dag_no, node_key, name) WHERE (NOT declared);

CREATE INDEX kept_due ON kept USING btree (due_at) WHERE (phase <> 'kept'::text);

CREATE INDEX kept_edge_down ON kept_edge USING btree (down, up) WHERE (down IS NOT NULL);

CREATE INDEX kept_external_undeclared ON kept_external USING btree (dag_no, node_key, name) WHERE (NOT declared);

CREATE UNIQUE INDEX kept_node_key ON kept_node USING btree (dag_no, key);

CREATE INDEX kept_old ON kept USING btree (finished_at, dag_no) WHERE (phase = 'kept'::text);

CREATE UNIQUE INDEX node_key ON node USING btree (dag_no, key);

CREATE INDEX outbox_due ON outbox USING btree (due_at);

CREATE INDEX run_listed ON run USING btree (namespace, dag_id);

CREATE INDEX run_listed_by_state ON run USING btree (namespace, state, dag_id);

CREATE INDEX run_listed_by_type ON run USING btree (namespace, type, dag_id);

CREATE INDEX run_stuck ON run USING btree (namespace, dag_id) WHERE (stuck IS NOT NULL);

CREATE UNIQUE INDEX schedule_id ON schedule USING btree (namespace, id);

CREATE INDEX schedule_look ON schedule USING btree (look_at) WHERE (look_at IS NOT NULL);

CREATE INDEX timer_look ON timer USING btree (look_at);
