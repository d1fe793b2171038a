"""Guards of what workers tell of themselves and of their jobs."""

from tests.mutations.model import Mutation

_PROGRESS = "contract/test_queue_progress.py"
_WORKERS = "contract/test_queue_workers.py"
_SUPERVISOR = "unit/headgate/worker/test_supervisor.py"

MUTATIONS = (
    Mutation(
        "progress-kept",
        "an extension that tells nothing leaves what was told",
        "services/queue/leases/extend.py",
        "told=told.get(item_id, holding.told)",
        "told=told.get(item_id)",
        (f"{_PROGRESS}::test_what_the_holder_told_last_is_shown_with_the_item",),
    ),
    Mutation(
        "progress-told-again",
        "progress that could not be told goes with the next extension",
        "headgate/_worker/leases.py",
        "                job.is_untold = True\n",
        "                job.is_untold = False\n",
        (
            "unit/headgate/worker/test_keepers.py::test_progress_that_could_not_be_told_is_told_with_the_next_extension",
        ),
    ),
    Mutation(
        "workers-reported",
        "what others learned of a worker does not bring it back once it has left",
        "services/queue/store/sql/workers.sql",
        " OR NOT known.is_reported;",
        " OR true;",
        ("contract/test_queue_workers.py::test_two_processes_that_see_one_worker_agree",),
    ),
    Mutation(
        "workers-newest",
        "an older report that is written later changes nothing",
        "services/queue/store/sql/workers.sql",
        "excluded.is_reported AND excluded.seen_at >= known.seen_at",
        "excluded.is_reported",
        ("contract/test_queue_workers.py::test_two_processes_that_see_one_worker_agree",),
    ),
    Mutation(
        "workers-bound",
        "a namespace has so many workers at most",
        "services/queue/store/sql/workers.sql",
        "WHERE worker.namespace = seen.namespace) <= $11::int",
        "WHERE worker.namespace = seen.namespace) <= $11::int + 1000",
        ("contract/test_queue_workers.py::test_rows_of_a_namespace_and_what_is_seen_are_bounded",),
    ),
    Mutation(
        "cancels-between",
        "what was cancelled between two reports is told by the second",
        "services/queue/operations/cancel_news.py",
        "            if number <= after:\n",
        "            if number <= self._last:\n",
        ("contract/test_queue_workers.py::test_what_was_cancelled_between_two_reports_is_told_by_the_second",),
    ),
    Mutation(
        "cancels-doubted",
        "an extension that was on its way when a cancel was heard of is made again",
        "headgate/_worker/leases.py",
        "                self._doubted.add(job)",
        "                pass",
        (
            "unit/headgate/worker/test_keepers.py"
            "::test_news_of_a_job_that_is_just_asked_for_or_on_its_way_here_is_not_lost",
        ),
    ),
    Mutation(
        "workers-of-one-namespace",
        "a namespace that names thousands of workers keeps no other's from being seen",
        "services/queue/operations/known_workers.py",
        "if is_full and not self._make_room(len(ours)):",
        "if is_full:",
        (f"{_WORKERS}::test_a_namespace_that_names_thousands_keeps_no_other_from_being_seen",),
    ),
    Mutation(
        "workers-without-room",
        "a worker for whom there is no room is not told the same news again and again",
        "services/queue/operations/known_workers.py",
        "self.news.wait(namespace, self.news.last, 0.0 if",
        "self.news.wait(namespace, 0, 0.0 if",
        (f"{_WORKERS}::test_a_report_of_a_worker_for_whom_there_is_no_room_is_held_until_something_is_cancelled",),
    ),
    Mutation(
        "threads-wait",
        "what is given to a thread waits behind no other",
        "headgate/_threads.py",
        "            self._idle -= not is_new\n",
        "",
        ("unit/headgate/test_threads.py::test_nothing_waits_behind_one_that_goes_on",),
    ),
    Mutation(
        "threads-ends",
        "an end that comes while the loop looks is told",
        "headgate/_threads.py",
        "        self._is_woken = False\n        for _ in range",
        "        for _ in range",
        ("unit/headgate/test_threads.py::test_all_that_ends_in_one_turn_of_the_loop_is_told_by_one_call",),
    ),
    Mutation(
        "worker-parent",
        "what a worker starts is not told who looks after the worker",
        "headgate/_worker/supervisor.py",
        "os.environ.pop(PARENT, None)",
        "os.environ.get(PARENT)",
        ("integration/app/test_processes.py::test_what_a_worker_starts_is_not_told_who_looks_after_the_worker",),
    ),
    Mutation(
        "worker-group-signal",
        "a signal to a whole group is not taken for two by workers to whom it is passed on besides",
        "headgate/_worker/signals.py",
        "        if self._is_looked_after:\n",
        "        if False:\n",
        (f"{_SUPERVISOR}::test_a_signal_to_the_whole_group_is_one_to_those_who_are_also_told_of_it",),
    ),
    Mutation(
        "worker-second-signal",
        "the second signal to a supervisor hurries its workers",
        "headgate/_worker/supervisor.py",
        "HURRY if self._told else number",
        "number",
        (f"{_SUPERVISOR}::test_the_second_signal_is_passed_on_as_such",),
    ),
)
