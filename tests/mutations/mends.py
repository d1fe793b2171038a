"""Mends of faults that were met on running services, taken out again: what worlds can meet they are to find."""

from tests.mutations.model import Mutation

_EXPAND = "services/dag/build/expand.py"
_CONTROL = "services/dag/run/control.py"
_DECISIONS = "services/dag/run/decisions.py"
_SUBDAG_RETRY = "services/dag/run/subdag_retry.py"
_DAG = "integration/dag"
_SUB_DAGS = f"{_DAG}/test_sub_dag_retries.py"
_REFUSED = f"{_DAG}/test_sub_dag_refusals.py"

MUTATIONS = (
    Mutation(
        "outputs-of-others",
        "what an ack gives is told of its own item under its own token",
        "services/queue/leases/ack_flushes.py",
        "            given.setdefault(token, {})[item_id] = output\n",
        "            for other, named in first:\n"
        "                if named == item_id:\n"
        "                    given.setdefault(other, {})[item_id] = output\n",
        ("integration/queue/test_shared_flush.py::test_the_output_of_an_ack_that_is_lost_is_nobodys",),
    ),
    Mutation(
        "set-on-new-shards",
        "pauses hold on a shard that is added later",
        "services/queue/operations/agreement.py",
        "            if row.paused_at is not None:\n",
        "            if row.paused_at is not None and not self._stores:\n",
        ("integration/test_settings_everywhere.py",),
    ),
    Mutation(
        "cancel-acked-lately",
        "what was acked, under an id that the service made, is finished and not cancelled",
        "services/queue/leases/cancel.py",
        "            found |= await self._store.acked_lately(unknown)\n",
        "",
        ("contract/test_queue_revive_cancel.py",),
    ),
    Mutation(
        "dead-of-a-retry",
        "a retry takes away the dead item that it supersedes",
        "services/queue/leases/cancel.py",
        "superseded = {item_id for item_id in dead if states[item_id].managed}",
        "superseded: set[str] = set()",
        ("contract/test_queue_managed.py",),
    ),
    Mutation(
        "default-backoff",
        "an item without a backoff that failed waits for a second and more",
        "services/queue/model.py",
        "    base_s: float = 1.0\n",
        "    base_s: float = 0.0\n",
        ("contract/test_queue_leases.py",),
    ),
    Mutation(
        "share-of-the-best",
        "the best priority there is may have a share",
        "services/queue/keys/priority_shares.py",
        "        self._starts, self._shares = list(share_from), list(share_from.values())\n",
        "        self._starts = [_BEST, *(priority for priority, _ in shares)]\n"
        "        self._shares = [0.0, *(share for _, share in shares)]\n",
        ("unit/queue/keys/test_priority_shares.py",),
    ),
    Mutation(
        "expand-binds-the-ended",
        "what waited for a node and has ended waits for its children once it is retried",
        _EXPAND,
        "if node.key not in children]",
        'if node.key not in children and node.state in ("blocked", "skipped", "cancelled")]',
        (f"{_DAG}/test_expand.py::test_children_bind_a_waiter_that_has_ended_for_when_it_is_retried",),
    ),
    Mutation(
        "adopt-with-children",
        "a child that is adopted brings its own children",
        _EXPAND,
        "        family |= {key: None} | below.get(key, {})\n",
        "        family |= {key: None}\n",
        (f"{_DAG}/test_expand.py::test_an_adopted_child_brings_its_own_children",),
    ),
    Mutation(
        "cleanup-deadline-early",
        "the deadline of a cleanup node's external has no part in how its DAG ends",
        _CONTROL,
        "                if node.run_on is not None:\n"
        "                    settlement.consider(node, why)\n"
        '                elif node.state == "blocked":\n',
        '                if node.state == "blocked":\n',
        (f"{_DAG}/test_external_deadlines.py::test_a_cleanup_nodes_deadline_has_no_part_in_how_the_dag_ends",),
    ),
    Mutation(
        "cleanup-deadline-forgotten",
        "a cleanup node's deadline that passes amid a cancel is not forgotten",
        _CONTROL,
        '    return not dag.over if node.run_on is not None else dag.state == "running"\n',
        '    return dag.state == "running"\n',
        (
            f"{_DAG}/test_external_deadlines.py::test_a_cancelled_dag_ends_when_the_deadline_of_its_cleanup_has_passed",
        ),
    ),
    Mutation(
        "first-reason",
        "the first cancel's reason stays",
        _DECISIONS,
        '        if dag.concluded or dag.cancel_cause == "call":\n',
        "        if dag.concluded:\n",
        (f"{_DAG}/test_reasons.py::test_a_second_cancel_changes_nothing",),
    ),
    Mutation(
        "deadline-reason",
        "a DAG that its deadline ended says so",
        _CONTROL,
        'settlement.cancel_rest(dag, "deadline", f"its deadline of {dag.deadline_s:g} s passed")',
        'settlement.cancel_rest(dag, "deadline")',
        (f"{_DAG}/test_reasons.py",),
    ),
    Mutation(
        "compensation-inputs",
        "a compensation is given what it undoes",
        _DECISIONS,
        "        if undoing:\n",
        "        if undoing and not self._passing:\n",
        (f"{_DAG}/test_compensation_input.py",),
    ),
    Mutation(
        "tolerated-verdict",
        "a failure that is tolerated fails no DAG",
        _DECISIONS,
        'return "failed" if dag.failed > dag.tolerated else "succeeded"',
        'return "failed" if dag.failed else "succeeded"',
        (f"{_DAG}/test_tolerance.py",),
    ),
    Mutation(
        "node-goes-along",
        "a DAG that ended in the place of a node and is retried by itself takes the node along",
        "services/dag/run/retry.py",
        "        if had_ended and dag.verdict is None:\n",
        "        if had_ended and dag.verdict is not None:\n",
        (f"{_SUB_DAGS}::test_a_failed_child_that_is_retried_by_itself_takes_its_node_along",),
    ),
    Mutation(
        "node-would-wait",
        "a child whose node would have to wait is not retried by itself",
        _SUBDAG_RETRY,
        '        if node.state != "released":\n',
        '        if node.state == "none":\n',
        (f"{_REFUSED}::test_a_child_is_not_retried_while_its_node_would_wait_for_what_was_undone",),
    ),
    Mutation(
        "place-of-another",
        "a child in whose place another one is to be made is not retried",
        _SUBDAG_RETRY,
        "    if node is None or node.item_id != child.id:\n",
        "    if node is None:\n",
        (f"{_REFUSED}::test_a_child_whose_node_a_caller_has_ended_does_not_run_again",),
    ),
    Mutation(
        "node-went-on",
        "a child is not retried for a generation that its node has left meanwhile",
        _SUBDAG_RETRY,
        "    return parent is not None and parent.generation <= (dag.parent_generation or 0)\n",
        "    return parent is not None and parent.generation < (dag.parent_generation or 0)\n",
        (f"{_SUB_DAGS}::test_a_child_whose_node_has_to_wait_after_all_is_stopped_and_another_is_made",),
    ),
    Mutation(
        "about-to-go-on",
        "a retry of a child takes nothing from one of its node",
        _SUBDAG_RETRY,
        '            if above is None and node.state == "released":\n',
        '            if above is None and node.state == "none":\n',
        (f"{_SUB_DAGS}::test_what_a_retry_of_the_node_lets_run_again_does_so_beside_a_retry_of_the_child",),
    ),
    Mutation(
        "ended-again-further-down",
        "what the row of a node has brought to its end is not begun again by the call that comes late",
        _SUBDAG_RETRY,
        "        if has_gone_on(dag, above):\n            return None, _begun(dag, node, child)\n",
        "",
        (f"{_SUB_DAGS}::test_a_retry_of_a_grandchild_that_its_row_has_brought_to_an_end_does_not_begin_it_again",),
    ),
    Mutation(
        "retried-as-asked",
        "a child is retried as its caller asks, also by who finds the row",
        _DECISIONS,
        "                await store.subdags.note_retry(self.tx, send)\n",
        "                pass\n",
        (f"{_SUB_DAGS}::test_a_child_is_retried_as_its_caller_asks_whoever_does_it",),
    ),
    Mutation(
        "unknown-parameters",
        "a query parameter that there is not is refused",
        "shared/http/edge.py",
        "        if name not in known:\n",
        "        if name is None:\n",
        ("contract/test_query_parameters.py",),
    ),
    Mutation(
        "body-cut",
        "a body that was cut off is not done, though it is JSON",
        "shared/http/hot_path.py",
        '            raise BadRequest("the connection was closed before the end of the body; send it whole")\n',
        "            break\n",
        (
            "integration/test_edge_limits.py::test_a_body_that_ends_with_its_connection_is_not_done_though_it_is_json",
        ),
    ),
    Mutation(
        "tokens-bad-line",
        "a line of the tokens file that is none keeps no other from coming or going",
        "shared/http/tokens.py",
        "        self._tokens = tokens\n        TOKENS_LINES",
        "        self._tokens = self._tokens if refused else tokens\n        TOKENS_LINES",
        ("unit/shared/http/test_access.py",),
    ),
    Mutation(
        "sweep-later-item",
        "an old lease takes back nothing of a later item under its id",
        "services/queue/store/sql/leases.sql",
        "item.id = ANY (sized.ids) AND item.enqueued_at <= sized.claimed_at) AS ids",
        "item.id = ANY (sized.ids)) AS ids",
        ("contract/test_queue_leases.py::test_an_old_lease_takes_back_nothing_of_a_later_item_under_its_id",),
    ),
    Mutation(
        "sweep-goes-on",
        "a sweep that came to its bound is followed by another at once",
        "services/queue/leases/expiry.py",
        "        or living >= bounds.items_max\n",
        "        or living > bounds.items_max\n",
        (
            "integration/queue/test_bounded_steps.py"
            "::test_a_sweep_that_came_to_a_bound_is_followed_by_another_at_once",
        ),
    ),
    Mutation(
        "cancelled-amid-retry",
        "cleanup comes again at the end of a DAG that is cancelled amid a large retry",
        _DECISIONS,
        "            if not await store.reopening.keep_cleanup_alone(self.tx, self.dags[no]):\n"
        "                self.dags[no].cleanup_phase = 0\n",
        "            await store.reopening.drop(self.tx, self.dags[no])\n"
        "            self.dags[no].cleanup_phase = 0\n",
        (
            f"{_DAG}/test_reopening.py"
            "::test_what_cancels_it_meanwhile_leaves_cleanup_and_compensation_to_come_again",
        ),
    ),
    Mutation(
        "begun-is-known",
        "a retry runs again what was compensated, also where its compensation began anew and did not run",
        "services/dag/store/sql/cleanup.sql",
        "(c.of_no, n.ran OR u.begun)",
        "(c.of_no, n.ran)",
        (f"{_DAG}/test_reopening.py::test_what_was_undone_is_done_again_after_retries_that_a_deadline_ends",),
    ),
    Mutation(
        "begun-of-the-retried",
        "a compensation that is retried by its own name leaves known what it had begun to undo",
        "services/dag/store/sql/cleanup.sql",
        "begun_generation = CASE WHEN a.begun THEN a.generation ELSE begun_generation END",
        "begun_generation = CASE WHEN a.begun AND NOT $3 THEN a.generation ELSE begun_generation END",
        (
            f"{_DAG}/test_compensation_input.py"
            "::test_what_was_undone_is_done_again_also_where_a_caller_asked_for_its_undoing_and_took_that_back",
        ),
    ),
    Mutation(
        "undone-amid-retry",
        "what was undone, and a retry that was cancelled did not reopen, is not undone again",
        "services/dag/store/sql/cleanup.sql",
        "state = 'succeeded' AND generation > c.undone_generation AS stands",
        "state = 'succeeded' AS stands",
        (
            f"{_DAG}/test_reopening.py"
            "::test_what_cancels_it_meanwhile_leaves_cleanup_and_compensation_to_come_again",
        ),
    ),
)
