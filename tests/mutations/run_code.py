"""Guards of runs in the DAG service: turns, parking, and ends."""

from typing import Final

from tests.mutations.model import Mutation

_TURNS: Final = "services/dag/workflows/turn_commits.py"
_RUNS: Final = "integration/dag/test_runs.py"
_FOLDING: Final = "integration/dag/test_folding_runs.py"
_TELL_RUNS_HERE: Final = "migrations/dag/functions/tell_runs_here.sql"
_PINNED: Final = "integration/dag/test_pinned_runs.py"
_UPDATES: Final = "integration/dag/test_run_updates.py"
_BAD: Final = "integration/dag/test_bad_runs.py"
_PLAIN: Final = "integration/dag/test_plain_turns.py"
_AWAKE: Final = "integration/dag/test_awake_runs.py"
_CONTINUED: Final = "integration/dag/test_continued_runs.py"
_STARTING: Final = "services/dag/workflows/starting.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "run-secret",
        "a turn is taken from the holder of the living generation alone",
        _TURNS,
        "    if not is_living or not deciders.knows(run, turn.secret):",
        "    if not is_living:",
        (f"{_RUNS}::test_a_turn_that_does_not_fit_writes_nothing", f"{_BAD}::test_a_bad_turn_writes_nothing"),
    ),
    Mutation(
        "run-generation",
        "a turn of an older generation is lost",
        _TURNS,
        'is_living = decider.state == "released" and decider.generation == turn.generation',
        'is_living = decider.state == "released"',
        (f"{_BAD}::test_a_bad_turn_writes_nothing",),
    ),
    Mutation(
        "run-parks",
        "no event leaves a run parked that its code has not seen",
        _TURNS,
        "is_idle = run.last_told <= run.seen and not run.open_steps and not self.settlement.tells(self._dag)",
        "is_idle = not run.open_steps and not self.settlement.tells(self._dag)",
        (f"{_RUNS}::test_an_event_between_the_read_and_the_turn_keeps_the_run_awake",),
    ),
    Mutation(
        "run-open-steps",
        "a run is awake while its steps run",
        _TURNS,
        "is_idle = run.last_told <= run.seen and not run.open_steps and not self.settlement.tells(self._dag)",
        "is_idle = run.last_told <= run.seen and not self.settlement.tells(self._dag)",
        (f"{_RUNS}::test_a_step_keeps_the_run_awake_until_its_result_is_written",),
    ),
    Mutation(
        "run-awake-paused",
        "a run that is paused does not wait with its worker",
        _TURNS,
        "        self.waits = waits and not self._dag.paused\n",
        "        self.waits = waits\n",
        (f"{_AWAKE}::test_a_run_that_is_paused_does_not_wait",),
    ),
    Mutation(
        "run-continued-cancel",
        "a cancel that a run's code was not told of is one of the run that it goes on as",
        _STARTING,
        "asked = await store.runs.untold_cancel(tx, run) if run.cancel_requested else None",
        "asked = None",
        (f"{_CONTINUED}::test_a_cancel_that_code_was_not_told_of_is_one_of_the_next_run",),
    ),
    Mutation(
        "run-continued-told",
        "code that was told of a cancel and goes on as a new run is not told of it again",
        "services/dag/store/sql/runs.sql",
        "event.event > r.seen",
        "event.event > 0",
        (f"{_CONTINUED}::test_code_that_was_told_of_a_cancel_and_goes_on_is_not_told_again",),
    ),
    Mutation(
        "run-continued-paused",
        "a run that is paused goes on as one that is paused",
        _STARTING,
        "parent, paused=dag.paused)",
        "parent, paused=False)",
        (f"{_CONTINUED}::test_a_run_that_is_paused_and_goes_on_as_a_new_one_stays_paused",),
    ),
    Mutation(
        "run-awake-lost",
        "a turn that waits is told nothing once another generation goes on with the run",
        "services/dag/store/sql/runs.sql",
        " AND n.state = 'released' AND n.generation = w.generation AND NOT d.paused",
        " AND NOT d.paused",
        (f"{_AWAKE}::test_a_look_tells_nothing_of_a_run_that_has_gone_on_in_another_generation",),
    ),
    Mutation(
        "run-awake-unheard",
        "no turn waits where the process would not hear of what others commit",
        "services/dag/workflows/awake.py",
        "            and context.news.is_heard\n",
        "",
        (f"{_AWAKE}::test_nothing_waits_where_it_would_not_hear_or_where_too_many_do",),
    ),
    Mutation(
        "run-awake-told",
        "an ack that tells a run which is awake says so",
        "services/queue/leases/dag_news.py",
        "            self.endings.tell(map(of_run, ends.awake))\n",
        "            pass\n",
        ("integration/dag/test_folding_ends.py::test_a_turn_that_waits_is_told_of_an_ack_over_redis",),
    ),
    Mutation(
        "run-plain-steps",
        "a turn of the short way has the results of all its steps",
        "services/dag/workflows/plain_turns.py",
        "        if sorted(steps) != sorted(result.key for result in turn.results) or len(set(keys)) < len(keys):",
        "        if len(set(keys)) < len(keys):",
        (f"{_PLAIN}::test_what_is_not_as_simple_is_left_to_the_long_way",),
    ),
    Mutation(
        "run-plain-secret",
        "the short way takes a turn from the holder of the living generation alone",
        "migrations/dag/functions/take_turns.sql",
        "AND r.run_secret = w.secret_hash AND r.open_steps",
        "AND r.open_steps",
        (
            "integration/dag/test_plain_turns.py::test_turns_that_come_together_are_one_statement_and_each_is_judged_for_itself",
        ),
    ),
    Mutation(
        "run-plain-signal-id",
        "a signal's id is taken once by the short way, too",
        "migrations/dag/functions/take_signal.sql",
        "    IF NOT FOUND THEN\n        RETURN NEXT;\n        RETURN;\n    END IF;\n",
        "",
        (f"{_BAD}::test_many_signals_at_once_are_each_taken_once",),
    ),
    Mutation(
        "run-plain-paused",
        "a signal releases nothing of a run that is paused",
        "migrations/dag/functions/take_signal.sql",
        " OR of_dag.waits OR",
        " OR",
        (f"{_PLAIN}::test_a_signal_that_is_not_as_simple_is_left_to_the_long_way",),
    ),
    Mutation(
        "run-plain-old-item",
        "a decider is not released by an item whose id the queue may not take any more",
        "migrations/dag/functions/take_signal.sql",
        "AND NOT (decider.is_young AND decider.is_taken) THEN",
        "AND NOT decider.is_taken THEN",
        (f"{_PLAIN}::test_a_signal_that_is_not_as_simple_is_left_to_the_long_way",),
    ),
    Mutation(
        "run-wakes",
        "the end of what a run waits for wakes it",
        "services/dag/run/decisions.py",
        "            self._told.append(ref.no)\n            self._woken.add(dag.no)\n",
        "            self._told.append(ref.no)\n",
        (f"{_RUNS}::test_a_turn_parks_and_an_end_wakes_it_in_the_next_generation",),
    ),
    Mutation(
        "run-known-keys",
        "a command takes effect once",
        _TURNS,
        "        if known:\n",
        "        if False:\n",
        (f"{_RUNS}::test_what_is_asked_for_again_is_refused",),
    ),
    Mutation(
        "run-signal-id",
        "a signal's id is taken once",
        "services/dag/workflows/control.py",
        "            if not is_new:\n                return False\n",
        "",
        (f"{_PLAIN}::test_both_ways_take_the_same_signals",),
    ),
    Mutation(
        "run-managed",
        "a run's DAG is changed by its code alone",
        "services/dag/run/control.py",
        "            if dag.workflow is not None and not on_runs:",
        "            if False:",
        (f"{_BAD}::test_a_runs_dag_is_changed_by_its_code_alone",),
    ),
    Mutation(
        "run-folded-over",
        "the delivery of a decider's living generation, ended without a turn, comes again",
        _TELL_RUNS_HERE,
        "(n.generation > u.generation",
        "(n.generation >= u.generation",
        (f"{_FOLDING}::test_a_delivery_that_ends_without_a_turn_is_told_and_comes_again",),
    ),
    Mutation(
        "run-folded-once",
        "a run that is awake is delivered once",
        _TELL_RUNS_HERE,
        "node.state = 'blocked' AS is_parked",
        "true AS is_parked",
        (f"{_FOLDING}::test_an_ack_wakes_the_run_that_waits_for_it",),
    ),
    Mutation(
        "run-folded-young",
        "an item is made under an id whose end the queue will remember",
        _TELL_RUNS_HERE,
        "n.is_young AND ",
        "",
        (f"{_FOLDING}::test_an_item_that_cannot_be_made_by_the_ack_is_made_by_the_ordinary_way",),
    ),
    Mutation(
        "run-folded-topic",
        "no item is made of a topic that is to be deleted",
        "migrations/queue/functions/make_here.sql",
        " AND topic.retiring IS NULL",
        "",
        (f"{_FOLDING}::test_a_topic_that_is_gone_is_made_anew_by_the_ordinary_way",),
    ),
    Mutation(
        "run-moved-away",
        "a turn of a run whose DAG was moved away is answered",
        "services/dag/store/sql/runs.sql",
        "LEFT JOIN LATERAL (\n    SELECT item_id::text, state, generation FROM node "
        "WHERE no = $1::bigint << 22 OFFSET 0) AS n ON true;\n",
        "CROSS JOIN LATERAL (\n    SELECT item_id::text, state, generation FROM node "
        "WHERE no = $1::bigint << 22 OFFSET 0) AS n;\n",
        (
            "integration/dag/test_runs.py::test_turns_of_a_run_whose_dag_was_moved_away_are_answered_as_before_that",
        ),
    ),
    Mutation(
        "run-lost-secret",
        "a decider whose item is lost has a new secret",
        "services/dag/run/completions.py",
        "if dags[0].workflow is not None and send.no == dags[0].node_no(0):",
        "if False:",
        (f"{_RUNS}::test_a_decider_whose_item_is_lost_has_a_new_secret",),
    ),
    Mutation(
        "run-pinned-topic",
        "a run that is moved is delivered to workers of its new version",
        "services/dag/run/deciders.py",
        "        item=item(run.type, run.version, secret, run.priority, delay_s),",
        "        item=item(run.type, None, secret, run.priority, delay_s),",
        (f"{_PINNED}::test_a_parked_run_that_is_moved_is_delivered_to_the_others_when_it_wakes",),
    ),
    Mutation(
        "run-moved-item",
        "nothing is left in the queue for workers that a run was moved from",
        "services/dag/workflows/control.py",
        "            settlement.sends.append(cancel)\n",
        "",
        (f"{_PINNED}::test_a_run_that_a_worker_has_is_moved_under_it",),
    ),
    Mutation(
        "run-update-first",
        "the first answer to an update stands",
        "services/dag/store/sql/runs.sql",
        "WHERE signal_id.ctid = found.tid AND found.waits)",
        "WHERE signal_id.ctid = found.tid)",
        (f"{_UPDATES}::test_the_first_answer_stands_and_a_turn_that_was_answered_is_answered_again",),
    ),
    Mutation(
        "run-update-asked",
        "what nobody has asked is not answered",
        "services/dag/workflows/turn_commits.py",
        "if answers and not await store.runs.answer_updates(self._tx, self._dag.no, answers):",
        "if not await store.runs.answer_updates(self._tx, self._dag.no, answers) and False:",
        (f"{_UPDATES}::test_an_answer_to_what_was_not_asked_writes_nothing",),
    ),
    Mutation(
        "run-update-left",
        "an update that a run has taken and not answered as it goes on is not open for ever",
        "services/dag/store/sql/runs.sql",
        "CASE WHEN asks AND id NOT IN (SELECT id FROM unread WHERE id IS NOT NULL)",
        "CASE WHEN answer IS NOT NULL",
        (f"{_UPDATES}::test_updates_that_were_not_received_go_on_with_the_next_run_and_others_fail",),
    ),
    Mutation(
        "run-page-bytes",
        "a page of runs is bounded in bytes",
        "services/dag/workflows/reading.py",
        "if not nth or total <= bytes_max",
        "if True",
        ("integration/dag/test_large_runs.py::test_a_page_of_runs_has_a_bound_in_bytes_and_leaves_none_out",),
    ),
)
