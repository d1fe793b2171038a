-- A call by which somebody changed what runs: who, what, to what, how many, and from where. On one shard of the
-- service, whichever answers of the first few.
CREATE TABLE audit_entry (
    entry_id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT shard_now(),
    namespace text NOT NULL,
    who text NOT NULL,
    verb text NOT NULL,
    target text NOT NULL,
    changed bigint,
    origin text NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (at, entry_id)
);
