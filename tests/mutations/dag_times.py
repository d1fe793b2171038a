"""Guards of values, timers and schedules of the DAG service."""

from tests.mutations.model import Mutation

_PUT_VALUE = "migrations/dag/functions/put_value.sql"
_TIMERS = "services/dag/store/sql/timers.sql"
_SCHEDULES = "services/dag/store/sql/schedules.sql"
_DECISIONS = "services/dag/run/decisions.py"
_TICKING = "services/dag/schedules/ticking.py"
_SCHEDULE_VERBS = "services/dag/schedules/schedules.py"
_SPEC = "services/dag/schedules/spec.py"

_VALUE_TESTS = "integration/dag/test_values.py"
_TIMER_TESTS = "integration/dag/test_timers.py"
_SCHEDULE_TESTS = "integration/dag/test_schedules.py"
_RACE_TESTS = "integration/dag/test_interleaved_times.py"
_SPEC_TESTS = "unit/dag/test_schedule_spec.py"

MUTATIONS = (
    Mutation(
        "value-version",
        "a write of a value that has another version is refused",
        _PUT_VALUE,
        "    ELSIF expected <> coalesce(old.version, 0) THEN",
        "    ELSIF expected > coalesce(old.version, 0) THEN",
        (f"{_VALUE_TESTS}::test_sixteen_writers_lose_no_update",),
    ),
    Mutation(
        "values-reused",
        "the id of a write stands for what it wrote",
        _PUT_VALUE,
        "IF place IS NOT NULL AND old.prints[place] <> print THEN",
        "IF false THEN",
        (f"{_VALUE_TESTS}::test_another_value_under_the_id_of_a_write_is_refused",),
    ),
    Mutation(
        "value-lock",
        "writes of values look behind one another's locks",
        _PUT_VALUE,
        "WHERE dag_no = found_dag.no FOR UPDATE;",
        "WHERE dag_no = found_dag.no;",
        (f"{_VALUE_TESTS}::test_of_two_writers_that_saw_the_same_version_one_is_refused",),
    ),
    Mutation(
        "value-again",
        "a write that is sent again is applied once",
        _PUT_VALUE,
        "    ELSIF place IS NOT NULL THEN",
        "    ELSIF place IS NOT NULL AND false THEN",
        (f"{_VALUE_TESTS}::test_a_write_sent_again_is_applied_once",),
    ),
    Mutation(
        "value-namespace",
        "another tenant writes no value",
        _PUT_VALUE,
        "WHERE dag.id = for_dag AND dag.namespace = for_namespace;",
        "WHERE dag.id = for_dag;",
        (f"{_VALUE_TESTS}::test_another_tenants_values_are_not_there",),
    ),
    Mutation(
        "timer-early",
        "a timer does not end before its time",
        _TIMERS,
        "WHERE node_no = w.no AND due_at <= shard_now() OFFSET 0",
        "WHERE node_no = w.no OFFSET 0",
        (f"{_TIMER_TESTS}::test_what_is_due_is_asked_again_under_the_lock",),
    ),
    Mutation(
        "timer-stopped",
        "a timer that is cancelled runs no more",
        _DECISIONS,
        '        if node.timer and node.state == "released":\n',
        '        if node.timer and node.state == "blocked":\n',
        (f"{_TIMER_TESTS}::test_a_cancel_ends_timers_at_once_and_for_good",),
    ),
    Mutation(
        "timer-from-release",
        "a timer's time counts from its release",
        _TIMERS,
        "        n.released_at + make_interval(secs => (s.said ->> 'delay_s')::float8)) AS at) AS due\n",
        "        shard_now() + make_interval(secs => (s.said ->> 'delay_s')::float8)) AS at) AS due\n",
        (f"{_TIMER_TESTS}::test_what_timers_show",),
    ),
    Mutation(
        "timer-older-owner",
        "an older program that owns the shard is given no timers",
        _TIMERS,
        "AND (level < $1::int OR level_epoch <> epoch) AS older",
        "AND level < $1::int AS older",
        (f"{_TIMER_TESTS}::test_an_older_owner_takes_no_timers",),
    ),
    Mutation(
        "slot-once",
        "a slot is decided once, by two owners too",
        _SCHEDULES,
        "FROM schedule WHERE no = $1 FOR UPDATE;",
        "FROM schedule WHERE no = $1;",
        (f"{_RACE_TESTS}::test_two_owners_decide_one_slot",),
    ),
    Mutation(
        "slot-due",
        "a slot is not decided before its time",
        _TICKING,
        "        if due is None or due > self._standing.now:\n",
        "        if due is None:\n",
        (f"{_SCHEDULE_TESTS}::test_jitter_puts_slots_off",),
    ),
    Mutation(
        "slot-overlap",
        "an unfinished run keeps slots back",
        _SCHEDULES,
        "        WHERE d.state IN ('running', 'cancelling')) AS unfinished",
        "        WHERE d.state = 'cancelling') AS unfinished",
        (f"{_SCHEDULE_TESTS}::test_overlap_skip_leaves_slots_out",),
    ),
    Mutation(
        "slot-ends-others",
        "a slot ends the run before it where its schedule says so",
        _TICKING,
        '            settlement.cancel_rest(dag, "call", _OTHER)',
        "            pass",
        ("integration/dag/test_overlaps.py::test_overlap_terminate_other_starts_at_once",),
    ),
    Mutation(
        "trigger-again",
        "a trigger that is sent again runs once",
        _TICKING,
        "            if known is not None:\n                return _Done(known)",
        "            if known is not None and known.no < 0:\n                return _Done(known)",
        (f"{_SCHEDULE_TESTS}::test_a_trigger_runs_now_and_once",),
    ),
    Mutation(
        "slot-forward",
        "a time that exists twice comes once",
        _SPEC,
        "            if found > moment:\n",
        "            if found:\n",
        (f"{_SPEC_TESTS}::test_cron_over_changes_of_clocks",),
    ),
    Mutation(
        "schedule-deleted",
        "a deleted schedule leaves nothing behind",
        _SCHEDULE_VERBS,
        "lock(tx, namespace, schedule_id)\n            if schedule is not None:\n"
        "                await store.schedules.delete",
        "get(shard, namespace, schedule_id)\n            if schedule is not None:\n"
        "                await store.schedules.delete",
        (f"{_RACE_TESTS}::test_a_slot_is_decided_while_its_schedule_is_deleted",),
    ),
)
