"""Guards in what both services stand on: flushes, connections, breakers, owners, tokens, ids."""

from tests.mutations.model import Mutation

_ACCESS = "shared/http/access.py"
_BATCHER = "shared/postgres/batcher.py"
_BREAKER = "shared/admission/breaker.py"
_CURSORS = "shared/http/cursors.py"
_IDS = "headgate/_ids.py"
_LOOP = "shared/loop.py"
_OWNERSHIP = "shared/shards/ownership.py"
_PG = "shared/postgres/connections.py"

_TOKENS = "unit/shared/http/test_access.py"
_FLUSHES = "unit/shared/postgres/test_batcher.py"
_BREAKERS = "unit/shared/admission/test_breaker.py"
_LOST = "integration/test_lost_connections.py"
_OWNERS = "integration/test_ownership.py"

MUTATIONS = (
    Mutation(
        "flush-poison",
        "a call that the database refuses fails alone",
        _BATCHER,
        "            if len(calls) == 1:\n                _fail(calls[0].future, error)\n",
        "            if True:\n                [_fail(call.future, error) for call in calls]\n",
        (f"{_FLUSHES}::test_a_poisoned_call_fails_alone",),
    ),
    Mutation(
        "commit-unknown",
        "who was cut off by a lost connection is not told that nothing was done",
        _PG,
        'raise ShardUnavailable(detail, outcome="unknown", retry_after_s=1.0) from error',
        "raise ShardUnavailable(detail, retry_after_s=1.0) from error",
        (f"{_LOST}::test_an_answer_that_is_cut_short_is_unknown_and_may_be_repeated",),
    ),
    Mutation(
        "conflicts-retried",
        "a deadlock costs no call",
        _PG,
        "                if attempt == RETRIES_MAX:\n",
        "                if True:\n",
        (
            "integration/queue/test_lock_order.py::test_a_cancel_that_comes_back_for_more_is_made_again_after_a_deadlock",
        ),
    ),
    Mutation(
        "breaker-failures",
        "a shard is doubted after so many failures in a row",
        _BREAKER,
        "if self._failures >= FAILURES_MAX or",
        "if self._failures > FAILURES_MAX or",
        (f"{_BREAKERS}::test_failures_in_a_row_are_looked_into_and_one_success_forgives_them",),
    ),
    Mutation(
        "breaker-one-probe",
        "one call at a time asks whether a shard is back",
        _BREAKER,
        'elif self.state == "half_open" or',
        "elif False or",
        (f"{_BREAKERS}::test_one_probe_at_a_time_after_the_pause",),
    ),
    Mutation(
        "duty-jitter",
        "duties of many processes do not all come at the same moment",
        _LOOP,
        "pause_s * random.uniform(0.75, 1.25)",
        "pause_s",
        ("unit/shared/test_loop.py::test_the_pauses_of_many_processes_fall_apart",),
    ),
    Mutation(
        "owners-believe",
        "an owner believes in its lease no longer than that lasts",
        _OWNERSHIP,
        "return hold is not None and self._clock.monotonic_s() < hold.deadline_s",
        "return hold is not None",
        (f"{_OWNERS}::test_a_stale_owner_neither_believes_nor_takes_back",),
    ),
    Mutation(
        "owners-clock",
        "a lease that ends later than any can is nobody's",
        _OWNERSHIP,
        "return left_s <= 0 or left_s > 2 * self._ttl_s",
        "return left_s <= 0",
        (f"{_OWNERS}::test_a_clock_that_went_back_keeps_no_shard_for_ever",),
    ),
    Mutation(
        "tokens-secret",
        "a token with another secret is unknown",
        _ACCESS,
        "if known is None or not hmac.compare_digest(digest, known.digest):",
        "if known is None:",
        (f"{_TOKENS}::test_a_token_with_another_secret_is_unknown",),
    ),
    Mutation(
        "tokens-namespaces",
        "a token opens its own namespaces",
        _ACCESS,
        "return self.namespaces is None or namespace in self.namespaces",
        "return True",
        ("contract/test_tenants.py::test_another_tenants_namespace_is_not_there",),
    ),
    Mutation(
        "cursors-lists",
        "a cursor is good for the list that gave it",
        _CURSORS,
        'if not separator or mark != f"{zlib.crc32(query.encode()):08x}":',
        "if not separator:",
        ("unit/shared/http/test_cursors.py::test_another_lists_cursor_is_refused",),
    ),
    Mutation(
        "ids-in-order",
        "ids of one process are in order, also where its clock goes back",
        _IDS,
        "if now_ms > self._last_ms:\n                self._last_ms, self._counter = now_ms, noise",
        "if now_ms != self._last_ms:\n                self._last_ms, self._counter = now_ms, noise",
        ("unit/headgate/test_ids.py::test_a_clock_that_steps_back_does_not_take_the_order_with_it",),
    ),
    Mutation(
        "entrance-shares",
        "enqueues leave room for acks and dequeues",
        "shared/admission/fair_queue.py",
        "_SHARES = (4.0, 3.25, 1.0, 1.0)",
        "_SHARES = (1.0, 1.0, 1.0, 1.0)",
        ("unit/shared/admission/test_fair_queue.py::test_acks_overtake_dequeues_overtake_enqueues",),
    ),
    Mutation(
        "flush-behind",
        "what the end of a flush lets in joins the next: a few calls do not stay apart in two halves",
        "shared/postgres/batcher.py",
        "                    for _ in range(TURNS_BEHIND):\n",
        "                    for _ in range(0):\n",
        (
            "unit/shared/postgres/test_batcher.py::test_what_the_end_of_a_flush_lets_in_joins_the_next_of_few_calls",
        ),
    ),
    Mutation(
        "prepared-anew",
        "a statement is prepared anew once its tables have changed",
        "shared/postgres/driver.py",
        "            self._prepared.clear()\n",
        "            pass\n",
        ("integration/test_kept_statements.py::test_a_table_that_has_changed_makes_a_transaction_begin_anew",),
    ),
    Mutation(
        "large-body-names",
        "a large body, too, names no member twice",
        "shared/http/json_body.py",
        "        if _format(_encode(members), indent=-1) == _format(body, indent=-1):\n",
        "        if True:\n",
        ("unit/shared/http/test_json_body.py::test_what_is_wrong_in_a_large_body_is_told_as_of_a_small_one",),
    ),
    Mutation(
        "let-in-full",
        "a full line refuses also who comes soon after another was let in",
        "shared/postgres/batcher.py",
        "if now_s - self._let_in_s < LET_IN_S and not self._is_full:",
        "if now_s - self._let_in_s < LET_IN_S:",
        ("unit/shared/postgres/test_batcher.py::test_no_more_than_so_many_wait",),
    ),
    Mutation(
        "let-in-away",
        "a shard that went away lets nobody in, however soon he comes",
        "shared/postgres/batcher.py",
        "        self._let_in_s = -inf\n        for weight",
        "        for weight",
        (
            "unit/shared/postgres/test_batcher.py::"
            "test_who_comes_soon_after_another_was_let_in_is_let_in_unless_the_shard_went_away_meanwhile",
        ),
    ),
)
