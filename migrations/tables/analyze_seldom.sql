-- Whatever cleans up or analyses a table writes what it found into the catalogue, and every plan of every
-- connection in which the table occurs is made anew at its next use (ADR 20). Statements are written so that no
-- plan depends on statistics, so there is little to be had from new ones. An insert threshold of -1:
-- inserts leave nothing to clean up, and by default a thousand of them are a reason.
DO $$
DECLARE
    name regclass;
BEGIN
    FOR name IN
        SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
        ORDER BY relname
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_analyze_threshold = 1000000)', name);
    END LOOP;
END $$;
