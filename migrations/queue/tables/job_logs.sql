-- Lines that one call of an item's holder brought, as a JSON array. `seq` counts the calls of a namespace, in the
-- order of their commits; `number` those of one lease, by its holder; `item_bytes` is the size of the item's log.
CREATE TABLE job_log (
    item_id uuid NOT NULL,
    namespace_id int NOT NULL,
    seq bigint NOT NULL,
    token uuid NOT NULL,
    number int NOT NULL,
    attempt int NOT NULL,
    worker text,
    received_at timestamptz NOT NULL,
    bytes int NOT NULL,
    item_bytes bigint NOT NULL,
    lines text NOT NULL,
    PRIMARY KEY (item_id, namespace_id, seq)) WITH (
        autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX job_log_age ON job_log (received_at);

-- What a namespace's logs take here. Its row is locked by all who write them.
CREATE TABLE job_log_use (namespace_id int PRIMARY KEY, bytes bigint NOT NULL, last_seq bigint NOT NULL)
    WITH (fillfactor = 50);
