-- One row a schedule; its row lock is the lock of the whole schedule. `spec` and `action` are JSON as they were
-- said, `plan` is the action as a DAG to be made. `next_at` is the next slot, `look_at` when it is to be decided:
-- behind it by the jitter, and by more where that failed.
CREATE TABLE schedule (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
    next_at timestamptz,
    look_at timestamptz,
    ticks bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT shard_now(),
    updated_at timestamptz NOT NULL DEFAULT shard_now(),
    pruned_to bigint NOT NULL DEFAULT 0,      -- the run to which the last look for ended runs has come; 0: the end
    CONSTRAINT schedule_overlap CHECK (overlap IN ('skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow'))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX schedule_id ON schedule (namespace, id);
CREATE INDEX schedule_look ON schedule (look_at) WHERE look_at IS NOT NULL;
-- What became of slots, the last so many of each schedule. Slots that were skipped in a row for one reason are
-- one.
CREATE TABLE tick (
    schedule_no bigint NOT NULL,
    no bigint NOT NULL,
    kind text NOT NULL,                       -- slot, trigger, backfill
    at timestamptz NOT NULL,
    through timestamptz NOT NULL,
    slots bigint NOT NULL,
    decision text NOT NULL,                   -- started, skipped, buffered
    reason text,
    run uuid,
    request uuid,
    decided_at timestamptz NOT NULL DEFAULT shard_now(),
    PRIMARY KEY (schedule_no, no)
);
-- Slots that wait until no run of their schedule is unfinished: one that was buffered (with its tick), and those
-- of backfills (`overlap` of the call), in their order.
CREATE TABLE waiting_slot (
    schedule_no bigint NOT NULL,
    no bigint GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    overlap text NOT NULL,
    tick bigint,
    request uuid,
    PRIMARY KEY (schedule_no, no)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Runs that may be unfinished.
CREATE TABLE schedule_run (
    schedule_no bigint NOT NULL,
    dag_no bigint NOT NULL,
    PRIMARY KEY (schedule_no, dag_no)
);
