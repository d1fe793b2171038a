-- Ends a claim: an item of this topic may take more of the answer than there is room for.
CREATE OR REPLACE FUNCTION refuse_large(topic_id int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'items of topic % are large: they are to be claimed within bounds', topic_id USING
        ERRCODE = 'HG001', DETAIL = topic_id::text;
END $$;
