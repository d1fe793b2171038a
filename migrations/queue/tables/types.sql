CREATE TYPE acked_item AS (
    id uuid,
    topic_id int,
    remembered bool,
    idempotency_key text,
    namespace_id int,
    attempts int,
    managed bool,
    ack_topic_id int,
    ack_context text);
COMMENT ON TYPE acked_item IS 'Of an item that has ended by an ack, what somebody may ask for later.';

-- What an ack has made ready: a completion item, or (`revived`) an item that its end has opened. `token` where it
-- is leased at once, with what the holder is given; not `is_ready` where it is delayed, or waits for a place.
CREATE TYPE told AS (
    topic_id int, priority int, deliver_at timestamptz, id uuid, revived boolean, is_ready boolean, token uuid,
    lease_until timestamptz, payload text, metadata text, inputs text, headers text, attempt int,
    enqueued_at timestamptz, at_most_once boolean, dag text);
COMMENT ON TYPE told IS 'A row without a topic names a DAG, by its id, that has ended by the ack.';
