"""Guards in what operators are shown, and in what they do through pages."""

from tests.mutations.model import Mutation

_COMMANDS = "integration/test_map_commands.py"
_AUDIT = "integration/test_audit_log.py"
_HISTORY = "unit/shared/console/test_history.py"
_RELAY = "unit/shared/console/test_relay.py"
_SITE = "contract/test_console.py"

MUTATIONS = (
    Mutation(
        "lists-without-a-word",
        "a list names the shards that it lacks",
        "shared/http/cursors.py",
        '    return found | {"away": away} if away else found\n',
        "    return found\n",
        ("integration/queue/test_shard_down.py::test_lists_hold_what_is_left_and_name_the_shard_that_is_away",),
    ),
    Mutation(
        "key-where-nobody-answers",
        "that no DAG has a key is said by all shards that may have it",
        "services/dag/read/queries.py",
        "        if key is not None and away and not found:\n",
        "        if key is None and away and not found:\n",
        ("integration/dag/test_shard_down.py::test_lists_hold_what_is_left_and_name_the_shard_that_is_away",),
    ),
    Mutation(
        "deploys-of-one-process",
        "processes that start one after another are one mark",
        "shared/console/merging.py",
        "            started = [*started, name] if at_s - last_s < DEPLOY_S else [name]\n",
        "            started = [name]\n",
        ("unit/shared/console/test_history.py::test_processes_that_start_one_after_another_are_one_deploy",),
    ),
    Mutation(
        "marks-of-other-shards",
        "a topic is not told what happened to shards that do not have it",
        "shared/console/merging.py",
        " and (mark[2] is None or not there or mark[2] in there)]\n",
        "]\n",
        (
            "unit/shared/console/test_history.py"
            "::test_a_topic_is_told_what_happened_to_shards_that_have_it_and_nothing_of_owners",
        ),
    ),
    Mutation(
        "previews-that-say-all",
        "a preview is not exact while a shard is away",
        "services/queue/operations/bulk.py",
        '            "exact": not silent and all(part.is_whole for part in parts),\n',
        '            "exact": all(part.is_whole for part in parts),\n',
        (
            "integration/queue/test_operation_outcomes.py"
            "::test_a_preview_counts_what_answers_and_names_what_does_not",
        ),
    ),
    Mutation(
        "acks-of-no-topic",
        "acks are counted by topic",
        "services/queue/store/shard_store.py",
        "            self.flow.acked(topic_id, items)\n",
        "            pass\n",
        ("contract/test_metrics.py::test_what_goes_in_and_out_is_told_of_the_topics_of_which_most_moves",),
    ),
    Mutation(
        "rates-without-a-bound",
        "rates are told of a bounded number of topics",
        "services/queue/duties/topic_rates.py",
        "            if pair not in known and len(known) >= self._topics_max:\n",
        "            if pair is None:\n",
        ("contract/test_metrics.py::test_what_goes_in_and_out_is_told_of_the_topics_of_which_most_moves",),
    ),
    Mutation(
        "token-in-an-address",
        "a token that stands in an address is refused",
        "shared/http/edge.py",
        '                _refuse_tokens(scope["path"], scope["query_string"])\n',
        "",
        (f"{_SITE}::test_a_token_in_an_address_is_refused",),
    ),
    Mutation(
        "near-names-of-others",
        "names that somebody may have meant are their own tenant's",
        "services/queue/dispatch/demand.py",
        "if of == namespace and asked_s > since_s]",
        "if asked_s > since_s]",
        ("contract/test_reasons.py::test_names_that_are_near_are_the_tenants_own",),
    ),
    Mutation(
        "relay-out-of-the-interface",
        "pages reach nothing of the other service but its interface",
        "shared/console/relay.py",
        'if not path.startswith("/v1/") or "." in segments or ".." in segments:',
        'if not path.startswith("/v1/"):',
        (f"{_RELAY}::test_only_calls_of_the_interface_are_passed_on",),
    ),
    Mutation(
        "history-of-the-round-before",
        "what was not sampled is a gap, and not a value of the round before",
        "shared/console/history.py",
        "                ring.values[missed % self.points] = math.nan\n",
        "                pass\n",
        (f"{_HISTORY}::test_what_was_not_sampled_is_a_gap_and_not_a_value_of_the_round_before",),
    ),
    Mutation(
        "owners-counted-twice",
        "what two owners at once have counted is counted once",
        "shared/console/merging.py",
        "places.setdefault(place, []).append(_added(METRICS[key.metric][0], several))",
        "places.setdefault(place, []).append(_added(SUM, several))",
        (f"{_HISTORY}::test_processes_are_merged_by_the_metric",),
    ),
    Mutation(
        "audit-of-looks",
        "a look at what an operation would do is no deed",
        "shared/console/audit_log.py",
        'who is None or asked.get("dry_run")',
        "who is None",
        (f"{_AUDIT}::test_operators_calls_are_kept_and_those_of_programs_are_not",),
    ),
    Mutation(
        "audit-of-what-may-be-done",
        "a call of which nobody knows whether it was done is listed",
        "shared/console/audit_log.py",
        'elif answered.get("outcome") == "none":',
        "else:",
        (f"{_AUDIT}::test_a_call_of_which_nobody_knows_whether_it_was_done_is_kept",),
    ),
    Mutation(
        "audit-after-the-deed",
        "what was done before a process died is listed",
        "shared/console/audit_log.py",
        "                await begin()  # who has read all of the call may do it\n            return parts[-1]\n",
        "                pass\n            return parts[-1]\n",
        ("integration/queue/test_operation_races.py::test_kill_9_in_the_middle_of_a_purge",),
    ),
    Mutation(
        "audit-of-lost-answers",
        "an entry whose shard lost the answer is not there beside that of the next shard",
        "shared/console/audit_log.py",
        'if refusal.outcome == "unknown":',
        "if False:",
        (f"{_AUDIT}::test_an_entry_whose_answer_was_lost_is_not_there_twice",),
    ),
    Mutation(
        "audit-of-repeats",
        "a call that comes once more by its id is the same entry",
        "shared/console/audit_log.py",
        "given) if given else str(uuid4())",
        "given) if False else str(uuid4())",
        (f"{_AUDIT}::test_the_same_call_once_more_is_the_same_entry",),
    ),
    Mutation(
        "audit-of-answered-ids",
        "an operation that comes once more by the id that its answer gave is the same entry",
        "shared/console/audit_log.py",
        'operation["id"]) if operation and is_new else None',
        'operation["id"]) if False else None',
        (f"{_AUDIT}::test_an_operation_sent_again_with_the_id_of_its_answer_is_the_same_entry",),
    ),
    Mutation(
        "audit-of-what-goes-on",
        "how many an operation has changed is told once it has ended",
        "shared/console/audit_log.py",
        '            if operation is not None and operation.get("state") == "running":\n',
        "            if False:\n",
        (f"{_AUDIT}::test_how_many_an_operation_has_changed_is_told_when_it_has_ended",),
    ),
    Mutation(
        "workers-seen-by-calls",
        "calls to a process that is not reported to any more do not undo a worker's reports",
        "services/queue/operations/known_workers.py",
        "        if before is not None and before.report is not None:\n            return\n",
        "",
        (
            "contract/test_queue_workers.py::"
            "test_calls_to_a_process_that_is_not_reported_to_any_more_do_not_undo_reports",
        ),
    ),
    Mutation(
        "map-by-a-tenant",
        "the map of the shards is not a tenant's to change, nor to see",
        "shared/console/routes.py",
        "    if caller.namespaces is not None:\n        raise Forbidden(\"a shard is every tenant's",
        "    if False:\n        raise Forbidden(\"a shard is every tenant's",
        (f"{_COMMANDS}::test_calls_that_are_refused",),
    ),
    Mutation(
        "map-without-the-setting",
        "pages change the map only where a setting allows it",
        "shared/console/map_commands.py",
        "return self._is_on and self._file is not None",
        "return self._file is not None",
        (f"{_COMMANDS}::test_calls_that_are_refused",),
    ),
    Mutation(
        "empty-or-unnamed",
        "a topic that is not named any more, because others hold more, is not told as empty",
        "services/queue/duties/gauges.py",
        "if REST in there or before is None:",
        "if before is None:",
        ("contract/test_metrics.py::test_a_topic_that_was_emptied_is_told_as_empty_not_as_unknown",),
    ),
    Mutation(
        "watch-what-changes",
        "a command that changes something is not repeated by `headgate watch`",
        "headgate/_cli/watch.py",
        'if not (_LOOKS & {" ".join(words[:1]), " ".join(words[:2])}):',
        "if not words:",
        ("unit/headgate/cli/test_watch_command.py::test_what_changes_something_is_not_repeated",),
    ),
)
