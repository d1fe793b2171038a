-- Ends an enqueue: the number does not stand for the topic that it was given with.
CREATE OR REPLACE FUNCTION refuse_void(topic_id int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'topic % is another by now: its names are to be read again', topic_id USING
        ERRCODE = 'HG001', DETAIL = topic_id::text;
END $$;
