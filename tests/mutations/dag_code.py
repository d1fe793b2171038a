"""Guards in the code of the DAG service: rechecks under the lock, bounds, orders of duties."""

from tests.mutations.model import Mutation

_ADDITION = "services/dag/build/addition.py"
_COMPLETE_HERE = "migrations/dag/functions/complete_here.sql"
_CONTEXT = "services/dag/run/context.py"
_CONTROL = "services/dag/run/control.py"
_EXPANDING = "services/dag/build/expand.py"
_GRAPH = "services/dag/graph.py"
_MODEL = "services/dag/model.py"
_LARGE_CALLS = "integration/dag/test_large_calls.py"
_ORDERS = "services/dag/build/topological_orders.py"
_QUOTAS = "services/dag/build/quotas.py"
_REGISTRATION = "services/dag/build/queue_registration.py"
_RELAY = "services/dag/duties/relay.py"
_REOPENING = "services/dag/run/reopening.py"
_RESULTS = "services/dag/duties/completion_poll.py"
_RETENTION = "services/dag/duties/retention.py"
_SETTLING = "services/dag/run/decisions.py"
_WALKING = "services/dag/duties/long_steps.py"

_ADOPTIONS = "integration/dag/test_expand_adoptions.py"
_BUILDING = "integration/dag/test_incremental_building.py"
_BUILDING_RACES = "integration/dag/test_building_races.py"
_COMPLETION_RACES = "integration/dag/test_completion_races.py"
_CLEANUP = "integration/dag/test_cleanup.py"
_DEADLINES = "integration/dag/test_external_deadlines.py"
_FAILURES = "integration/dag/test_folding_failures.py"
_KEPT = "integration/dag/test_retention.py"
_REOPENED = "integration/dag/test_reopening.py"
_PRIORITY = "integration/dag/test_priority.py"
_LATE = "integration/dag/test_late_duties.py"

MUTATIONS = (
    Mutation(
        "call-namespace",
        "another tenant changes no DAG",
        _CONTEXT,
        "    if not dags or dags[0].namespace != namespace:",
        "    if not dags:",
        ("integration/dag/test_bad_input.py::test_b6_another_namespaces_dag_is_404",),
    ),
    Mutation(
        "limit-nodes",
        "a DAG may have as many nodes as its limit says, and not one more",
        _ADDITION,
        "        if count > limit:\n",
        "        if count > limit + 1:\n",
        (f"{_BUILDING_RACES}::test_limits_refuse_before_anything_is_written",),
    ),
    Mutation(
        "limit-upstreams",
        "a node may have as many upstreams as the limit says, and not one more",
        _ADDITION,
        "if added + (old.upstreams if old else 0) > settings.degree_max:",
        "if added > settings.degree_max:",
        (f"{_BUILDING_RACES}::test_limits_refuse_before_anything_is_written",),
    ),
    Mutation(
        "late-edges",
        "an edge into a node that is released is refused, unless its upstream has succeeded",
        _ADDITION,
        'is_met = up is not None and up.state == "succeeded" and not dag.reopening',
        'is_met = up is not None and up.state != "blocked" and not dag.reopening',
        (f"{_BUILDING_RACES}::test_r11_an_edge_into_a_released_node_is_refused_unless_satisfied",),
    ),
    Mutation(
        "cycles-of-others",
        "an order in memory is not trusted where others have added edges",
        _ORDERS,
        "if order is None or order.version != dag.structure_version:",
        "if order is None:",
        (f"{_BUILDING_RACES}::test_r13_two_services_do_not_trust_their_memory_of_each_others_edges",),
    ),
    Mutation(
        "expanding-generation",
        "an older generation of a node adds no children",
        _EXPANDING,
        "    if expansion.generation not in (None, mapper.generation):",
        "    if False:",
        ("integration/dag/test_expand.py::test_only_a_node_that_runs_expands_itself",),
    ),
    Mutation(
        "cancel-keeps-cleanup",
        "a cancel leaves alone what cleans up",
        _SETTLING,
        'if dag.concluded or dag.cancel_cause == "call":',
        'if dag.cancel_cause == "call":',
        (f"{_CLEANUP}::test_a_cancel_while_it_cleans_up_changes_nothing",),
    ),
    Mutation(
        "ends-reopening",
        "no DAG ends amid a retry",
        _SETTLING,
        "if dag.unfinished > dag.cleanup_left or dag.over or dag.reopening:",
        "if dag.unfinished > dag.cleanup_left or dag.over:",
        (f"{_REOPENED}::test_who_comes_after_a_crash_goes_on",),
    ),
    Mutation(
        "expire-externals-reopening",
        "a deadline of an older generation means nothing amid a retry",
        _CONTROL,
        '    if dag.reopening and node.state != "blocked":',
        "    if False:",
        (f"{_DEADLINES}::test_a_deadline_of_an_older_generation_that_passes_amid_a_retry_means_nothing",),
    ),
    Mutation(
        "walk-moved-on",
        "a walk whose node runs again stops",
        _WALKING,
        "if not dag.flipping or not walk.current or walk.state in UNFINISHED:",
        "if not dag.flipping:",
        (f"{_COMPLETION_RACES}::test_a_walk_left_over_from_an_older_generation_is_void",),
    ),
    Mutation(
        "reopen-sends",
        "what was to be released of an older generation is not sent after a retry",
        _REOPENING,
        "    await store.duties.drop_sends(tx, nos)\n",
        "",
        (f"{_LATE}::test_a_retry_sends_nothing_that_was_decided_before_it",),
    ),
    Mutation(
        "kept-ended-anew",
        "a DAG that ended anew is moved away by the note of its new end",
        _RETENTION,
        "if dag is None or dag.finished_at != kept.finished_at:",
        "if dag is None or not dag.over:",
        (f"{_LATE}::test_a_dag_that_ended_anew_since_it_was_noted_is_moved_in_its_own_time",),
    ),
    Mutation(
        "kept-due",
        "a DAG that was brought back since it was found due is left for a while",
        _RETENTION,
        'elif kept.phase != "kept" and kept.due:',
        'elif kept.phase != "kept":',
        (f"{_KEPT}::test_a_mover_that_had_found_a_dag_due_before_its_thaw_leaves_it",),
    ),
    Mutation(
        "kept-dropped",
        "a DAG that was brought back since it was found old is not dropped",
        _RETENTION,
        'if dag.no in noted and noted[dag.no].phase == "kept"]',
        "if dag.no in noted]",
        (f"{_LATE}::test_a_dag_that_was_brought_back_since_it_was_found_old_is_not_dropped",),
    ),
    Mutation(
        "completions-acked-after",
        "a completion is acked once it was applied",
        _RESULTS,
        "            self._done += await self._apply(piece)\n",
        "            self._done += [each.completion for each in piece]\n            await self._apply(piece)\n",
        (f"{_LATE}::test_a_completion_whose_transaction_fails_is_not_acked_with_the_next_ones",),
    ),
    Mutation(
        "lost-items-late",
        "an item is taken for lost only once every completion before is applied",
        _RELAY,
        "            if now_s - since_s > self._settings.completion_lease_s + 1:",
        "            if True:",
        (f"{_LATE}::test_an_item_is_taken_for_lost_only_when_every_completion_before_is_applied",),
    ),
    Mutation(
        "lost-items-drained",
        "what waits in the queue is applied before an item is taken for lost",
        _RELAY,
        "            await self._drain(shard)\n",
        "",
        (f"{_COMPLETION_RACES}::test_an_item_that_ended_in_a_long_outage_is_not_run_again",),
    ),
    Mutation(
        "quota-dags",
        "a namespace may have as many DAGs as its quota says, and not one more",
        _QUOTAS,
        "if limit is not None and more and have + more > limit:",
        "if limit is not None and more and have + more > limit + 1:",
        ("integration/dag/test_quotas.py::test_dags_over_the_quota_are_refused_and_leave_nothing",),
    ),
    Mutation(
        "failure-cancels",
        "a failure that cancels its DAG is told",
        _COMPLETE_HERE,
        "u.failure IS NOT NULL AND (dags.cancels OR x.tolerate)",
        "u.failure IS NOT NULL AND x.tolerate",
        (f"{_FAILURES}::test_a_failure_that_something_else_comes_of_is_told",),
    ),
    Mutation(
        "failure-tolerated",
        "a failure that is tolerated is told",
        _COMPLETE_HERE,
        "u.failure IS NOT NULL AND (dags.cancels OR x.tolerate)",
        "u.failure IS NOT NULL AND dags.cancels",
        (f"{_FAILURES}::test_a_failure_that_something_else_comes_of_is_told",),
    ),
    Mutation(
        "failure-counted",
        "a child counts a failed upstream as failed",
        _COMPLETE_HERE,
        "            up_failed = node.up_failed + x.failed\n",
        "            up_failed = node.up_failed\n",
        (f"{_FAILURES}::test_what_waits_for_a_failure_is_released_with_it",),
    ),
    Mutation(
        "failure-verdict",
        "a DAG whose last node fails has failed",
        _COMPLETE_HERE,
        "WHEN dags.has_failed OR k.failed > 0 THEN 'failed'",
        "WHEN dags.has_failed THEN 'failed'",
        (f"{_FAILURES}::test_a_dag_ends_with_the_failure_of_its_last_node",),
    ),
    Mutation(
        "priority-ahead-started",
        "what may be released before its DAG has started is not given to the queue as of one that has",
        _MODEL,
        "(waits_for > 0 and is_ranked)",
        "is_ranked",
        (f"{_PRIORITY}::test_what_will_be_sent_with_a_known_priority_is_given_to_the_queue_before",),
    ),
    Mutation(
        "priority-ahead-ranked",
        "a node behind which more may come is ranked when it is released",
        _MODEL,
        "(is_new and not self.open and not self.held)",
        "is_new",
        (
            f"{_PRIORITY}::test_what_will_be_sent_with_a_known_priority_is_given_to_the_queue_before",
            "integration/dag/test_folding_priority.py::test_a_dag_whose_nodes_cannot_be_ranked_yet_takes_the_ordinary_way",
        ),
    ),
    Mutation(
        "priority-ahead-again",
        "items that are given to the queue after a crash have the priority of those that were given at once",
        _REGISTRATION,
        "lift=lifted.get(i.no, 0)",
        "lift=0",
        (f"{_PRIORITY}::test_an_item_that_is_sent_again_after_a_crash_is_lifted_too",),
    ),
    Mutation(
        "order-sorted-undone",
        "of edges that are sorted in at once none stays where one closes a cycle",
        _GRAPH,
        "        if cycle:\n            self.remove(edges)\n        return cycle\n",
        "        return cycle\n",
        ("unit/dag/test_graph.py::test_edges_sorted_at_once_are_taken_unless_one_of_them_closes_a_cycle",),
    ),
    Mutation(
        "order-sorted-reach",
        "all that stands between the ends of the edges is sorted",
        _GRAPH,
        "max(high for _, high in against)",
        "min(high for _, high in against)",
        ("unit/dag/test_graph.py::test_edges_sorted_at_once_are_taken_unless_one_of_them_closes_a_cycle",),
    ),
    Mutation(
        "order-sorted-bound",
        "a call does not look at most nodes for each of its edges",
        _GRAPH,
        "self._visited > visits_max and len(edges) - place > 1",
        "False",
        ("unit/dag/test_graph.py::test_a_call_of_many_edges_against_the_order_is_sorted_at_once",),
    ),
    Mutation(
        "large-calls-beside",
        "what a call brings is gone through beside the event loop, if it is much",
        "services/dag/build/create.py",
        "        return len(edges) > self._settings.edges_at_once_max\n",
        "        return False\n",
        (f"{_LARGE_CALLS}::test_four_times_the_edges_do_not_keep_the_loop_longer",),
    ),
    Mutation(
        "large-calls-statements",
        "no statement writes more edges than may be written at once",
        "services/dag/build/insertion.py",
        "    at_once_max = context.settings.edges_at_once_max\n",
        "    at_once_max = 10**9\n",
        (f"{_LARGE_CALLS}::test_four_times_the_edges_do_not_keep_the_loop_longer",),
    ),
    Mutation(
        "adopt-who-is-above",
        "no node is a child of its own child, however deep",
        _EXPANDING,
        "            if brought == mapper.key:\n",
        "            if False:\n",
        (f"{_ADOPTIONS}::test_nor_does_it_adopt_its_parents_parent_or_one_that_has_that_below_it",),
    ),
    Mutation(
        "adopt-who-waits",
        "what waits for a node does not become its child, also where it would be brought by another",
        _EXPANDING,
        "        waiting = await _waiting(tx, mapper, below[mapper.key])\n"
        "        _check_adopted(mapper, fresh, below, waiting)\n"
        "        family = _adopt(below, mapper.key, fresh)\n",
        "        family = _adopt(below, mapper.key, fresh)\n"
        "        waiting = await _waiting(tx, mapper, below[mapper.key])\n",
        (f"{_ADOPTIONS}::test_who_has_a_waiter_of_the_node_below_it_or_is_one_does_not_become_its_child",),
    ),
    Mutation(
        "met-edges-cycle",
        "an edge that changes nothing is refused where it would close a cycle",
        "services/dag/build/met_edges.py",
        "    if cycle:\n",
        "    if False:\n",
        (f"{_BUILDING}::test_an_edge_into_what_has_ended_closes_no_cycle_either",),
    ),
    Mutation(
        "late-edge-to-itself",
        "an edge from a node to itself is a cycle, whatever the node's state",
        _ADDITION,
        "            if edge.upstream == edge.downstream:\n",
        "            if False:\n",
        (f"{_BUILDING}::test_an_edge_from_what_runs_to_itself_is_a_cycle_and_not_late",),
    ),
    Mutation(
        "met-edges-far",
        "an edge that changes nothing is refused also where the way back is long",
        "services/dag/build/met_edges.py",
        "_EDGES_ABOVE_MAX = 5_000",
        "_EDGES_ABOVE_MAX = 2",
        (f"{_BUILDING}::test_a_long_way_back_is_seen_too",),
    ),
    Mutation(
        "close-once-ended",
        "a close counts also of a DAG that has ended",
        _CONTROL,
        "            if dag.open or not (dag.over or dag.closed):\n",
        "            if not dag.over and (dag.open or not dag.closed):\n",
        (
            "integration/dag/test_running_a_dag.py::"
            "test_an_open_dag_that_is_closed_once_it_has_ended_ends_again_after_a_retry",
        ),
    ),
)
