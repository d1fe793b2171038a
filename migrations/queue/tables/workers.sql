-- Workers by name, written every few seconds while they are seen. `topics` is a JSON array; who has reported
-- itself is known by that alone, others by their dequeues and extends.
CREATE TABLE worker (
    namespace text NOT NULL,
    name text NOT NULL,
    host text,
    version text,
    topics text NOT NULL,
    running int,
    is_reported bool NOT NULL,
    since timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    alive_until timestamptz NOT NULL,
    PRIMARY KEY (namespace, name)) WITH (
        fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 1000);

-- Items that were cancelled while they were leased, for a minute.
CREATE TABLE cancelled_lease (item_id uuid NOT NULL, namespace_id int NOT NULL, at timestamptz NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX cancelled_lease_at ON cancelled_lease (at);
