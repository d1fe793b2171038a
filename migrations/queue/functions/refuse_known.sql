-- Ends an enqueue of ids by callers, once `inserted` of them are, where one may be of an item that has ended, or is out of
-- the window in which ends are remembered. Asked first is whether anything at all ended between the first and the last
-- id, which of new ids is seldom so: a look for each of many costs more than all else of their enqueue but the inserts.
-- Of `acked`, `made` are the first digits of ids, 16 ms each; more rows lie between only where the answer is yes.
CREATE OR REPLACE FUNCTION refuse_known(
    wanted uuid[], first_id uuid, last_id uuid, window_ms bigint, ahead_ms bigint, inserted bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at_ms CONSTANT bigint := extract(epoch FROM shard_now()) * 1000;
BEGIN
    IF first_id >= (lpad(to_hex(at_ms - window_ms), 12, '0') || repeat('0', 20))::uuid
        AND last_id < (lpad(to_hex(at_ms + ahead_ms + 1), 12, '0') || repeat('0', 20))::uuid
    THEN
        IF NOT (
            EXISTS (SELECT FROM ended WHERE ended.id >= first_id AND ended.id <= last_id)
            OR EXISTS (SELECT FROM ended_old WHERE ended_old.id >= first_id AND ended_old.id <= last_id)
            OR EXISTS (
                SELECT FROM acked
                WHERE acked.made >= left(first_id::text, 12) AND acked.made <= left(last_id::text, 12)
                    AND acked.ids[1] <= last_id AND acked.ids[cardinality(acked.ids)] >= first_id))
        THEN
            RETURN;
        END IF;
        IF NOT (
            EXISTS (SELECT FROM acked_among(wanted))
            OR EXISTS (SELECT FROM ended WHERE ended.id = ANY (wanted))
            OR EXISTS (SELECT FROM ended_old WHERE ended_old.id = ANY (wanted)))
        THEN
            RETURN;
        END IF;
    END IF;
    RAISE EXCEPTION 'ids that are not new, or out of their window: they are to be looked at one by one' USING
        ERRCODE = 'HG001', DETAIL = 'not new';
END $$;
