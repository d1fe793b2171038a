-- What a node's upstreams say, as `services.dag.graph.decide` has it: `wait`, `fire` or `skip`.
CREATE OR REPLACE FUNCTION verdict(trigger text, up_left int, up_ok int, up_failed int, up_skipped int, up_cancelled int)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN trigger = 'all_succeeded' AND up_failed + up_skipped + up_cancelled > 0 THEN 'skip'
        WHEN trigger = 'none_failed' AND up_failed + up_cancelled > 0 THEN 'skip'
        WHEN trigger = 'any_succeeded' AND up_ok > 0 THEN 'fire'
        WHEN trigger = 'any_failed' AND up_failed > 0 THEN 'fire'
        WHEN up_left > 0 THEN 'wait'
        WHEN trigger IN ('any_succeeded', 'any_failed') THEN 'skip'
        ELSE 'fire'
    END
$$;
