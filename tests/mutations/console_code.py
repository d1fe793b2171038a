"""Guards in what operators are shown, and in what they do through pages."""

from tests.mutations.model import Mutation

_AUDIT = "integration/test_audit_log.py"
_HISTORY = "unit/shared/console/test_history.py"
_RELAY = "unit/shared/console/test_relay.py"
_SITE = "contract/test_console.py"

MUTATIONS = (
    Mutation(
        "token-in-an-address",
        "a token that stands in an address is refused",
        "shared/http/edge.py",
        '                _refuse_tokens(scope["path"], scope["query_string"])\n',
        "",
        (f"{_SITE}::test_a_token_in_an_address_is_refused",),
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
        '        if asked.get("dry_run"):\n            return None\n',
        "",
        (f"{_AUDIT}::test_operators_calls_are_kept_and_those_of_programs_are_not",),
    ),
    Mutation(
        "audit-of-what-may-be-done",
        "a call of which nobody knows whether it was done is listed",
        "shared/console/audit_log.py",
        'if is_done or answered.get("outcome") == "unknown":',
        "if is_done:",
        (f"{_AUDIT}::test_a_call_of_which_nobody_knows_whether_it_was_done_is_kept",),
    ),
)
