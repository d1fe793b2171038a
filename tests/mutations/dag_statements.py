"""Guards in the statements and functions of the DAG service."""

from tests.mutations.model import Mutation

_CLEANUP = "services/dag/store/sql/cleanup.sql"
_DAGS = "services/dag/store/sql/dags.sql"
_DUTIES = "services/dag/store/sql/duties.sql"
_EDGES = "services/dag/store/sql/edges.sql"
_KEPT = "services/dag/store/sql/archive.sql"
_NODES = "services/dag/store/sql/nodes.sql"
_REOPENING = "services/dag/store/sql/reopening.sql"
_COMPLETE_HERE = "migrations/dag/functions/complete_here.sql"
_OWNERSHIP = "shared/shards/ownership.sql"

_COMPLETION_RACES = "integration/dag/test_completion_races.py"
_CONTROL_RACES = "integration/dag/test_control_races.py"
_FOLDING = "integration/dag/test_folding.py"
_FOLDING_ENDS = "integration/dag/test_folding_ends.py"
_RETENTION = "integration/dag/test_retention.py"
_OWNERS = "integration/test_ownership.py"
_LATE = "integration/dag/test_late_duties.py"

MUTATIONS = (
    Mutation(
        "completion-generation",
        "an older generation's end has no effect",
        _NODES,
        "WHERE dag_no = w.dag_no AND key = w.key AND generation = w.generation\n",
        "WHERE dag_no = w.dag_no AND key = w.key\n",
        (f"{_CONTROL_RACES}::test_r20_an_older_generations_end_is_without_effect",),
    ),
    Mutation(
        "completion-once",
        "an end counts once",
        _NODES,
        "            AND state IN ('blocked', 'released') OFFSET 0) AS n",
        "            OFFSET 0) AS n",
        (f"{_COMPLETION_RACES}::test_r6_a_completion_that_comes_again_counts_once",),
    ),
    Mutation(
        "confirmation-generation",
        "a cancel that is confirmed late cancels no later generation",
        _NODES,
        "WHERE no = w.no AND generation = w.generation AND state IN ('blocked', 'released') OFFSET 0",
        "WHERE no = w.no AND state IN ('blocked', 'released') OFFSET 0",
        (
            "integration/dag/test_interleaved_control.py::"
            "test_all_runs_again_while_a_cancel_of_the_old_generation_is_confirmed",
        ),
    ),
    Mutation(
        "confirmation-once",
        "a cancel that is confirmed after the end changes nothing",
        _NODES,
        "WHERE no = w.no AND generation = w.generation AND state IN ('blocked', 'released') OFFSET 0",
        "WHERE no = w.no AND generation = w.generation OFFSET 0",
        (f"{_LATE}::test_a_cancel_that_is_confirmed_after_the_end_changes_nothing",),
    ),
    Mutation(
        "renewed-add-id",
        "of two who renew an id of one node the first one's stands",
        _NODES,
        "WHERE no = w.no AND state = 'blocked' AND enqueued AND node.item_id = w.old_item_id",
        "WHERE no = w.no AND state = 'blocked' AND enqueued AND w.old_item_id IS NOT NULL",
        (
            "integration/dag/test_create_batch.py::test_two_who_drive_an_add_whose_ids_grew_too_old_give_what_the_nodes_have",
        ),
    ),
    Mutation(
        "renewed-item-ended",
        "an item that ended in a long outage is not made anew",
        _NODES,
        "WHERE no = $1 AND generation = $2 AND state = 'released' AND NOT EXISTS (",
        "WHERE no = $1 AND generation = $2 AND NOT EXISTS (",
        (f"{_LATE}::test_an_item_that_was_taken_for_lost_is_not_made_anew_after_its_end",),
    ),
    Mutation(
        "renewed-item-generation",
        "two who find an item lost make one new one",
        _NODES,
        "WHERE no = $1 AND generation = $2 AND state = 'released' AND NOT EXISTS (",
        "WHERE no = $1 AND state = 'released' AND NOT EXISTS (",
        (f"{_LATE}::test_two_who_find_an_item_lost_make_it_anew_once",),
    ),
    Mutation(
        "renewed-item-cancelled",
        "a lost item that is to be cancelled is not made anew",
        _NODES,
        "SELECT FROM outbox WHERE node_no = $1 AND generation = $2 AND action = 'cancel')",
        "SELECT FROM outbox WHERE false)",
        ("integration/dag/test_node_cancel.py::test_a_lost_item_of_a_node_to_be_cancelled_is_not_made_again",),
    ),
    Mutation(
        "retry-leaves-callers-choice",
        "what a caller skipped stays so when what is above is retried",
        _NODES,
        "AND (state = 'failed' OR NOT by_call OR $4::boolean)",
        "AND (state = 'failed' OR $4::boolean IS NOT NULL)",
        (
            "integration/dag/test_node_cancel.py::test_a_cancelled_node_stays_so_when_what_a_failure_cancelled_is_retried",
        ),
    ),
    Mutation(
        "reach-leaves-callers-choice",
        "a retry at once does not go through what a caller skipped",
        _REOPENING,
        "n.state = ANY($2::text[]) AND NOT (n.by_call AND n.state IN ('skipped', 'cancelled')) AS again",
        "n.state = ANY($2::text[]) AS again",
        ("integration/dag/test_retry_modes.py::test_what_a_caller_skipped_stays_so_from_above",),
    ),
    Mutation(
        "retry-later-externals",
        "what failed after the call for a retry is not asked for again",
        _NODES,
        "AND ($3::timestamptz IS NULL OR resolved_at <= $3) OFFSET 0",
        "OFFSET 0",
        ("integration/dag/test_reopening.py::test_an_external_that_fails_after_the_call_is_not_asked_for_again",),
    ),
    Mutation(
        "edges-flipped-once",
        "an edge to what has not run again counts once, however often its node ends",
        _EDGES,
        "SELECT ctid AS tid FROM edge WHERE edge.up = w.up AND NOT satisfied OFFSET 0",
        "SELECT ctid AS tid FROM edge WHERE edge.up = w.up OFFSET 0",
        (f"{_LATE}::test_a_node_that_runs_again_is_not_counted_again_by_what_ran_meanwhile",),
    ),
    Mutation(
        "walked-edges-flipped-once",
        "an edge that was added behind the end is not counted again by the walk",
        _EDGES,
        "WHERE up = $1 AND down > $3 AND NOT satisfied ORDER BY down LIMIT $4",
        "WHERE up = $1 AND down > $3 ORDER BY down LIMIT $4",
        (f"{_LATE}::test_a_walk_does_not_count_an_edge_that_was_added_behind_the_end",),
    ),
    Mutation(
        "expire-externals-resolved",
        "an external that was resolved since the look does not fail by its deadline",
        _EDGES,
        "    WHERE x.resolved_at IS NULL AND x.deadline_at <= shard_now()\n",
        "    WHERE x.deadline_at <= shard_now()\n",
        (f"{_LATE}::test_an_external_that_was_resolved_meanwhile_does_not_fail_by_its_deadline",),
    ),
    Mutation(
        "expire-externals-renewed",
        "an external whose deadline counts anew since the look does not fail by the old one",
        _EDGES,
        "    WHERE x.resolved_at IS NULL AND x.deadline_at <= shard_now()\n",
        "    WHERE x.resolved_at IS NULL\n",
        (f"{_LATE}::test_an_external_whose_deadline_counts_anew_does_not_fail_by_the_old_one",),
    ),
    Mutation(
        "resolve-once",
        "an external is resolved once, the first time",
        _EDGES,
        "WHERE x.resolved_at IS NULL\nRETURNING",
        "WHERE true\nRETURNING",
        ("integration/dag/test_interleaved.py::test_two_resolve_one_external_and_it_is_counted_once",),
    ),
    Mutation(
        "dag-deadline-renewed",
        "a DAG whose deadline counts anew since the look is not cancelled by the old one",
        _DAGS,
        "SELECT deadline_at <= shard_now() AS past FROM dag",
        "SELECT true AS past FROM dag",
        (f"{_LATE}::test_a_dag_whose_deadline_counts_anew_is_not_cancelled_by_the_old_one",),
    ),
    Mutation(
        "dag-namespace",
        "another tenant's DAG is not there",
        _DAGS,
        "FROM dag WHERE id = $1 AND namespace = $2;",
        "FROM dag WHERE id = $1 AND $2::text IS NOT NULL;",
        ("integration/dag/test_bad_input.py::test_b6_another_namespaces_dag_is_404",),
    ),
    Mutation(
        "dag-key-namespace",
        "a key is one namespace's",
        _DAGS,
        "FROM dag WHERE namespace = $1 AND key = $2 AND key IS NOT NULL;",
        "FROM dag WHERE $1::text IS NOT NULL AND key = $2 AND key IS NOT NULL;",
        ("integration/dag/test_keys.py::test_a_key_is_one_namespaces",),
    ),
    Mutation(
        "sent-rows-action",
        "the row of a cancel is not deleted with that of the release before it",
        _DUTIES,
        "WHERE node_no = w.node_no AND generation = w.generation AND action = w.action OFFSET 0",
        "WHERE node_no = w.node_no AND generation = w.generation AND w.action IS NOT NULL OFFSET 0",
        (f"{_LATE}::test_a_cancel_is_still_told_when_the_release_before_it_was",),
    ),
    Mutation(
        "dropped-sends",
        "a retry drops no cancel that the queue is still to be told of",
        _DUTIES,
        "WHERE o.action IN ('enqueue', 'revive', 'start')));",
        "));",
        (f"{_LATE}::test_a_retry_keeps_the_cancels_that_the_queue_was_not_told_of",),
    ),
    Mutation(
        "cleanup-deadline",
        "a DAG that cleans up has no deadline, which the sweeper would meet for ever",
        _CLEANUP,
        "deadline_at = CASE WHEN $4::int <= 0 THEN deadline_at END",
        "deadline_at = deadline_at",
        ("integration/dag/test_cleanup.py::test_a_deadline_cancels_the_rest_and_not_the_cleanup",),
    ),
    Mutation(
        "kept-grace",
        "a DAG that has just ended is not moved away",
        _KEPT,
        "            AND finished_at <= (SELECT shard_now()) - make_interval(secs => $1::float8)\n"
        "        ORDER BY finished_at, id LIMIT $2) AS d",
        "            AND $1::float8 IS NOT NULL\n        ORDER BY finished_at, id LIMIT $2) AS d",
        (f"{_RETENTION}::test_a_dag_that_runs_or_has_just_ended_stays",),
    ),
    Mutation(
        "kept-adding",
        "a DAG whose nodes the queue is still to be given is not moved away",
        _KEPT,
        "OR EXISTS (SELECT FROM adding WHERE first_no >= w.dag_no << 22 AND first_no < (w.dag_no + 1) << 22)\n",
        "",
        (f"{_LATE}::test_an_ended_dag_with_something_left_to_do_is_not_moved",),
    ),
    Mutation(
        "kept-walks",
        "a DAG with a walk to go on with is not moved away",
        _KEPT,
        "    OR EXISTS (SELECT FROM scan WHERE scan.dag_no >= w.dag_no AND scan.dag_no <= w.dag_no);",
        "    ;",
        (f"{_LATE}::test_an_ended_dag_with_something_left_to_do_is_not_moved",),
    ),
    Mutation(
        "export-mark",
        "the mark of what was exported only moves forward",
        _KEPT,
        "exported_until = greatest(export_mark.exported_until, excluded.exported_until)",
        "exported_until = excluded.exported_until",
        (f"{_RETENTION}::test_an_export_is_waited_for_where_that_is_set",),
    ),
    Mutation(
        "folding-cancelling",
        "an ack does not go on with a DAG that is being cancelled",
        _COMPLETE_HERE,
        "AND dag.state = 'running' AND NOT dag.held",
        "AND NOT dag.held",
        (f"{_FOLDING}::test_an_end_that_meets_something_else_is_told",),
    ),
    Mutation(
        "folding-paused-dags",
        "an ack releases nothing of a paused DAG",
        _COMPLETE_HERE,
        "AND NOT dag.held AND NOT dag.paused",
        "AND NOT dag.held",
        (f"{_FOLDING}::test_an_end_that_meets_something_else_is_told",),
    ),
    Mutation(
        "folding-cleaning",
        "an ack does not go on with a DAG that cleans up or is reopened",
        _COMPLETE_HERE,
        "AND dag.cleanup_phase = 0\n",
        "\n",
        (f"{_FOLDING}::test_an_end_that_meets_something_else_is_told",),
    ),
    Mutation(
        "folding-generation",
        "an ack of an older generation ends no node",
        _COMPLETE_HERE,
        "AND node.key = u.key AND node.generation = u.generation\n",
        "AND node.key = u.key\n",
        ("integration/dag/test_folding_guards.py::test_an_end_of_another_generation_or_item_ends_no_node",),
    ),
    Mutation(
        "folding-item",
        "an ack ends the node that has the item, whatever its context says",
        _COMPLETE_HERE,
        "AND node.item_id = u.item_id AND NOT node.sub",
        "AND NOT node.sub",
        ("integration/dag/test_folding_guards.py::test_an_end_of_another_generation_or_item_ends_no_node",),
    ),
    Mutation(
        "folding-parents",
        "the end of a DAG that runs for a node is told to that",
        _COMPLETE_HERE,
        "AND dag.cleanup_left = 0 AND dag.parent_dag IS NULL AS may_empty",
        "AND dag.cleanup_left = 0 AS may_empty",
        (f"{_FOLDING_ENDS}::test_a_sub_dags_end_is_told",),
    ),
    Mutation(
        "folding-tolerated",
        "a DAG that ends by an ack fails by failures that are not tolerated, and by no others",
        _COMPLETE_HERE,
        "dag.failed > dag.tolerated AS has_failed",
        "dag.failed > 0 AS has_failed",
        (f"{_FOLDING_ENDS}::test_an_end_is_written_as_the_dag_service_writes_it",),
    ),
    Mutation(
        "owners-take",
        "a shard is taken only where it is free or lapsed",
        _OWNERSHIP,
        "WHERE owner IS NULL OR owner = $1::text OR expires_at <= shard_now()\n",
        "WHERE true OR owner = $1::text OR expires_at <= shard_now()\n",
        ("integration/test_ownership.py::test_of_two_who_saw_a_shard_free_the_first_takes_it",),
    ),
    Mutation(
        "owners-keep",
        "an owner whose shard was taken meanwhile does not renew it",
        _OWNERSHIP,
        "WHERE owner = $1::text AND epoch = $2::bigint\nRETURNING wanted_by;",
        "WHERE $1::text IS NOT NULL AND $2::bigint IS NOT NULL\nRETURNING wanted_by;",
        (f"{_OWNERS}::test_a_stale_owner_neither_believes_nor_takes_back",),
    ),
)
