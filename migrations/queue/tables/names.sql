CREATE TABLE namespace (
    namespace_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    settings text NOT NULL DEFAULT '{}',
    declared boolean NOT NULL DEFAULT false,
    set_at timestamptz);                      -- NULL: never set here, only made by a first item
CREATE INDEX namespace_limited ON namespace (namespace_id) WHERE settings <> '{}';
CREATE INDEX namespace_set ON namespace (namespace_id) WHERE set_at IS NOT NULL;
INSERT INTO namespace (name, declared) VALUES ('default', true), ('_dag', true);

CREATE TABLE topic (
    topic_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id int NOT NULL,
    name text COLLATE "C" NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    min_share text,                           -- JSON: [[priority, share], ...]; NULL: none
    paused_at timestamptz,
    min_share_at timestamptz,
    -- Set while the topic is to be deleted, to another value each time: nothing is taken in under its number then.
    -- Who wants to takes it back first.
    retiring uuid,
    limits text,                              -- what is set, as JSON, the same on every shard
    limits_at timestamptz,
    UNIQUE (namespace_id, name));
CREATE INDEX topic_paused ON topic (topic_id) WHERE paused;
CREATE INDEX topic_min_share ON topic (topic_id) WHERE min_share IS NOT NULL;
CREATE INDEX topic_limits ON topic (topic_id) WHERE limits IS NOT NULL;
CREATE INDEX topic_set ON topic (topic_id)
    WHERE paused_at IS NOT NULL OR min_share_at IS NOT NULL OR limits_at IS NOT NULL;
CREATE INDEX topic_retiring ON topic (topic_id) WHERE retiring IS NOT NULL;

-- Of a limited or throttled topic, at the home of its slot: what may be handed out. `granted` maps tokens to how
-- many items a call is about to claim, and until when that may be; `leased` maps shards to how many were leased
-- there at most.
CREATE TABLE topic_gate (
    namespace text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    tokens float8,
    filled_at timestamptz NOT NULL,
    slow_until timestamptz,
    granted text NOT NULL DEFAULT '{}',
    leased text NOT NULL DEFAULT '{}',
    PRIMARY KEY (namespace, topic)) WITH (
        fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX topic_gate_slow ON topic_gate (slow_until) WHERE slow_until IS NOT NULL;
