"""Guards of workflows: the loop, the replay, and the worker's driver."""

from typing import Final

from tests.mutations.model import Mutation

_HEADGATE: Final = "headgate/workflow/"
_TESTS: Final = "unit/headgate/workflow/"
_REPLAY: Final = f"{_TESTS}test_replay.py"
_LOOP: Final = f"{_TESTS}test_loop.py"
_SIMULATION: Final = f"{_TESTS}test_simulation.py"
_DRIVER: Final = f"{_TESTS}test_driver.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "workflow-hash",
        "tasks and futures hash alike in every process",
        f"{_HEADGATE}loop.py",
        "        return self._number\n\n\nclass NumberedFuture",
        "        return id(self) >> 4\n\n\nclass NumberedFuture",
        (f"{_REPLAY}::test_every_prefix_of_every_history_replays_to_the_recorded_commands",),
    ),
    Mutation(
        "workflow-tasks-held",
        "the collector runs no workflow's code",
        f"{_HEADGATE}loop.py",
        "        self._tasks[task._number] = task\n",
        "",
        (f"{_LOOP}::test_tasks_that_nobody_holds_are_not_collected_while_they_wait",),
    ),
    Mutation(
        "workflow-makes-tasks",
        "asyncio makes no tasks in the order of addresses",
        f"{_HEADGATE}loop.py",
        "        if name not in _MAKES_TASKS:",
        "        if False:",
        (f"{_LOOP}::test_what_would_replay_otherwise_is_refused_and_leaves_the_run_stuck_not_failed",),
    ),
    Mutation(
        "workflow-ends-of-a-set",
        "what ends first is not told by the order of addresses",
        f"{_HEADGATE}completing.py",
        "isinstance(awaitables, set | frozenset) and",
        "False and",
        (f"{_TESTS}test_completing.py::test_ends_of_a_set_of_calls_are_refused",),
    ),
    Mutation(
        "workflow-fingerprint",
        "another argument is a mismatch",
        f"{_HEADGATE}matching.py",
        "        if event.fingerprint != command.fingerprint:",
        "        if False:",
        (f"{_REPLAY}::test_each_kind_of_edit_is_a_mismatch_that_names_both_sides_and_the_line",),
    ),
    Mutation(
        "workflow-check",
        "what the code asks for before `seen` is in the history",
        f"{_HEADGATE}matching.py",
        "            if number > seen:\n                break",
        "            break",
        (f"{_REPLAY}::test_what_the_history_lacks_is_found_at_its_end",),
    ),
    Mutation(
        "workflow-patched-first",
        "the first answer of `patched` holds for the run",
        f"{_HEADGATE}replay.py",
        "if self.told <= self.seen or name in self._unpatched:",
        "if self.told <= self.seen:",
        (f"{_REPLAY}::test_a_patch_is_off_for_runs_that_have_passed_it_and_its_first_answer_holds",),
    ),
    Mutation(
        "workflow-marker-after",
        "a marker counts from its event on",
        f"{_HEADGATE}replay.py",
        "        return self.told >= marked",
        "        return True",
        (f"{_REPLAY}::test_a_marker_counts_only_from_its_event_on",),
    ),
    Mutation(
        "workflow-due",
        "the time is at least that of a timer that fired",
        f"{_HEADGATE}replay.py",
        "            self._advance(self._due(asked.timer.when))\n",
        "",
        (f"{_LOOP}::test_the_clock_is_at_least_a_fired_timers_due",),
    ),
    Mutation(
        "workflow-cancel-once",
        "a cancelled run may clean up",
        f"{_HEADGATE}replay.py",
        "            if not self._cancel_told:",
        "            if True:",
        (f"{_SIMULATION}::test_the_ends_of_the_cases",),
    ),
    Mutation(
        "workflow-net",
        "what is asked for and dropped within one event is not told",
        f"{_HEADGATE}replay.py",
        "        if self._made.pop((asked.kind, asked.key), None) is not None:",
        "        if False:",
        (f"{_SIMULATION}::test_what_is_asked_for_and_dropped_within_one_event_is_not_told",),
    ),
    Mutation(
        "workflow-dropped",
        "a run that goes on elsewhere asks for nothing here, and its code sees no error",
        f"{_HEADGATE}replay.py",
        "        if self.loop.stopped:\n            raise GeneratorExit\n",
        "",
        (f"{_LOOP}::test_a_dropped_run_asks_for_nothing_and_says_nothing",),
    ),
    Mutation(
        "workflow-guard-caught",
        "the guard tells also what the code caught",
        f"{_HEADGATE}guard.py",
        "    if watch.found is not None:",
        "    if False:",
        (f"{_LOOP}::test_the_guard_tells_also_what_the_code_caught",),
    ),
    Mutation(
        "workflow-seen",
        "`seen` passes an event with its last command only",
        f"{_HEADGATE}driving/driver.py",
        "seen = left[0].after - 1 if left else core.told",
        "seen = core.told",
        (f"{_DRIVER}::test_an_event_that_makes_3000_commands_takes_several_turns_also_with_a_death_between",),
    ),
    Mutation(
        "workflow-learn",
        "a kept core learns what another worker wrote",
        f"{_HEADGATE}driving/driver.py",
        "        core.learn(page.seen, page.markers)\n",
        "",
        (f"{_DRIVER}::test_a_kept_core_does_not_say_again_what_another_worker_said",),
    ),
    Mutation(
        "workflow-doubt",
        "a run that does not replay is found before its turn is sent",
        f"{_HEADGATE}driving/driver.py",
        "        if first != second:",
        "        if False:",
        (f"{_DRIVER}::test_doubled_replay_finds_globals_before_a_turn_is_sent",),
    ),
    Mutation(
        "workflow-hung-cap",
        "threads that hang are replaced up to a cap",
        f"{_HEADGATE}driving/threads.py",
        "            if self.hung <= self._hung_max:",
        "            if True:",
        (f"{_DRIVER}::test_threads_that_do_not_come_back_are_replaced_up_to_a_cap",),
    ),
    Mutation(
        "workflow-hung-cancelled",
        "a thread that hangs in work which nobody waits for any more is replaced",
        f"{_HEADGATE}driving/threads.py",
        "            self._leave(work, limit_s)\n",
        "",
        (
            "unit/headgate/workflow/test_threads.py::"
            "test_a_thread_that_hangs_in_work_which_nobody_waits_for_any_more_is_replaced",
        ),
    ),
    Mutation(
        "workflow-place-lost",
        "a thread whose work ends as it is given up gives its place back",
        f"{_HEADGATE}driving/threads.py",
        "        except NeverYields:\n            # What",
        "        except ZeroDivisionError:\n            # What",
        (
            "unit/headgate/workflow/test_threads.py::test_given_up_between_its_end_and_saying_so_a_thread_gives_its_place_back",
        ),
    ),
    Mutation(
        "workflow-thread-ended",
        "a thread whose work ended just in time is not given up",
        f"{_HEADGATE}driving/threads.py",
        "            if work.ended:",
        "            if False:",
        (
            "unit/headgate/workflow/test_threads.py::test_work_that_ends_just_before_it_is_given_up_keeps_its_thread",
        ),
    ),
    Mutation(
        "workflow-timer-again",
        "a timeout that mended code is in still comes",
        f"{_HEADGATE}replay.py",
        "            self._ask_for_timer(asked.timer, None)\n",
        "            pass\n",
        ("integration/dag/test_runs.py::test_a_run_that_failed_within_a_timeout_goes_on_within_it",),
    ),
    Mutation(
        "workflow-collector",
        "nothing looks for garbage while a history is replayed",
        f"{_HEADGATE}collector.py",
        "    gc.disable()\n",
        "",
        (f"{_REPLAY}::test_the_collector_is_paused_while_a_history_is_replayed_and_no_longer",),
    ),
    Mutation(
        "workflow-turn-bytes",
        "results of steps go in turns of bounded bytes",
        f"{_HEADGATE}driving/driver.py",
        "        ended = ended[: _fitting(sizes, RESULTS_MAX, driver.part_bytes_max)]",
        "        ended = ended[: len(sizes)]",
        (f"{_DRIVER}::test_results_of_steps_go_in_turns_of_bounded_bytes_and_no_step_runs_twice",),
    ),
    Mutation(
        "workflow-tasks-of-others",
        "a task is compared with no task of other runs",
        f"{_HEADGATE}loop.py",
        "        asyncio._unregister_task(self)\n",
        "",
        ("unit/headgate/workflow/test_loop.py::test_tasks_of_runs_are_in_no_set_of_all_tasks",),
    ),
)
