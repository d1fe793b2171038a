"""Guards of runs whose code goes on from an earlier event, or with other outputs."""

from typing import Final

from tests.mutations.model import Mutation

_REWRITING: Final = "services/dag/workflows/rewriting.py"
_SQL: Final = "services/dag/store/sql/resets.sql"
_TESTS: Final = "integration/dag/test_reset_runs.py"
_RETRIED: Final = "integration/dag/test_retried_runs.py"
_UNIT: Final = "unit/headgate/workflow/test_resets.py"
_REPLAY: Final = "headgate/workflow/replay.py"
_CONTINUED: Final = "integration/dag/test_continued_runs.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "retried-id",
        "a resume of the same id is done once",
        _REWRITING,
        '                return dag.id\n            if run.over and run.state != "failed":',
        '                pass\n            if run.over and run.state != "failed":',
        (f"{_RETRIED}::test_a_retry_that_is_sent_again_because_its_answer_was_lost_is_one",),
    ),
    Mutation(
        "retried-succeeded",
        "what has succeeded is not done once more",
        _REWRITING,
        '_with_output(asked, key, place).state != "succeeded"]',
        "_with_output(asked, key, place)]",
        (f"{_RETRIED}::test_one_end_is_replaced_and_another_still_to_come",),
    ),
    Mutation(
        "retried-keys",
        "what is asked for after a retry has keys of its own, also where nothing else was told since",
        _REPLAY,
        '        self._reset = max(self._reset, data.get("reset", 0))\n',
        "",
        (f"{_UNIT}::test_in_memory_too_a_retry_is_told_when_it_ends_and_not_before",),
    ),
    Mutation(
        "retried-step",
        "a step that is to be done once more is open",
        _REWRITING,
        "        run.open_steps = list(dict.fromkeys([*run.open_steps, *steps]))\n",
        "",
        (f"{_RETRIED}::test_a_step_of_a_failed_run_is_done_once_more",),
    ),
    Mutation(
        "reset-void-ends",
        "code is not told of ends of what a reset has made void",
        "services/dag/store/sql/runs.sql",
        "        CASE WHEN state <> 'succeeded' THEN coalesce(error, state) END, void\n    FROM ended)",
        "        CASE WHEN state <> 'succeeded' THEN coalesce(error, state) END, NULL::int\n    FROM ended)",
        (f"{_TESTS}::test_a_run_goes_on_from_an_earlier_event_under_other_keys_and_what_ran_is_cancelled",),
    ),
    Mutation(
        "reset-folded-ends",
        "acks tell the code of a run that was reset by way of the service, which knows what is void",
        "migrations/dag/functions/tell_runs_here.sql",
        "r.run_state = 'running' AND r.resets = 0",
        "r.run_state = 'running'",
        ("integration/dag/test_folding_runs.py::test_the_end_of_what_a_reset_has_made_void_is_told_nobody",),
    ),
    Mutation(
        "reset-cancels",
        "what a reset has made void does not run on",
        _REWRITING,
        "        self._settlement.cancel_items(living)\n",
        "",
        (f"{_TESTS}::test_a_run_goes_on_from_an_earlier_event_under_other_keys_and_what_ran_is_cancelled",),
    ),
    Mutation(
        "reset-id",
        "a reset of the same id is done once",
        _REWRITING,
        "                return dag.id\n            if not await store.resets.is_told",
        "                pass\n            if not await store.resets.is_told",
        (f"{_TESTS}::test_the_same_reset_again_changes_nothing",),
    ),
    Mutation(
        "reset-told",
        "code goes back to what it was told of alone",
        _REWRITING,
        "            if not await store.resets.is_told(tx, run, wanted.event):",
        "            if False:",
        (f"{_TESTS}::test_an_event_that_code_is_not_told_of_is_no_point_to_go_back_to",),
    ),
    Mutation(
        "reset-markers",
        "a patch that was taken after the point is decided anew",
        _REWRITING,
        "for name, after in json.loads(run.markers).items() if after < event}",
        "for name, after in json.loads(run.markers).items()}",
        (f"{_TESTS}::test_what_code_showed_marked_and_was_asked_to_do_after_the_point_is_void",),
    ),
    Mutation(
        "reset-cancel-request",
        "a request to end that came after the point is void",
        _SQL,
        "        after >= $2 OR kind = 'run' AND state = 'cancel_requested'\n",
        "        after >= $2\n",
        (f"{_TESTS}::test_a_run_that_is_over_goes_on_from_its_beginning",),
    ),
    Mutation(
        "reset-bounded",
        "a reset holds its run's lock for a bounded time",
        _REWRITING,
        "if await store.resets.count_void(tx, run, event, VOID_MAX + 1) > VOID_MAX:",
        "if False:",
        (f"{_TESTS}::test_so_much_is_not_asked_for_anew_at_once",),
    ),
    Mutation(
        "replaced-ended",
        "what has not ended is given no output beside its own",
        _REWRITING,
        "        if key in nodes and nodes[key].state in UNFINISHED:",
        "        if False:",
        (f"{_TESTS}::test_a_task_of_a_stuck_run_that_has_not_ended_keeps_its_output",),
    ),
    Mutation(
        "replaced-standing",
        "outputs are not replaced under code that goes on",
        _REWRITING,
        "            if not run.over and run.stuck is None:",
        "            if False:",
        (f"{_TESTS}::test_outputs_of_a_run_that_goes_on_or_of_what_has_not_ended_are_not_replaced",),
    ),
    Mutation(
        "replaced-asked-anew",
        "what is asked for anew because of a replaced end is not replaced with it",
        _REWRITING,
        "                if asked[key].after >= first:",
        "                if False:",
        (f"{_TESTS}::test_bad_outputs_change_nothing",),
    ),
    Mutation(
        "reset-kept-core",
        "code that was told of what is void is replayed from its beginning",
        _REPLAY,
        'if self.told >= data.get("event", 0) and self._reset < data.get("reset", 0):',
        "if False:",
        (f"{_UNIT}::test_a_core_that_was_told_of_what_is_void_is_made_anew",),
    ),
    Mutation(
        "reset-keys",
        "what is asked for after a reset has keys of its own",
        _REPLAY,
        'key = f"{base}#{number}~{self._reset}" if self._reset else f"{base}#{number}"',
        'key = f"{base}#{number}"',
        (f"{_UNIT}::test_after_a_reset_code_asks_anew_under_other_keys_and_facts_stay",),
    ),
    Mutation(
        "reset-noted",
        "a reset that is sent again is one, also where its run has gone on as a new one",
        _REWRITING,
        "        await store.resets.note(tx, run, reset_id)\n",
        "",
        (f"{_CONTINUED}::test_a_reset_that_is_sent_again_once_its_run_has_gone_on_as_a_new_one_is_one",),
    ),
)
