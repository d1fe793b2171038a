"""The oracle of schedules notices what it is for: each history but the sound one breaks one promise."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.worlds.schedule_facts import Asked, Schedule, judge


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def tick(number: int, kind: str, first_s: float, decision: str = "started", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "tick": number,
        "kind": kind,
        "at": at(first_s),
        "through": at(first_s),
        "slots": 1,
        "decision": decision,
        "reason": None,
        "run": f"run {number}" if decision == "started" else None,
        "decided_at": at(first_s + 1),
    }
    return given | more


def lived(schedule: Schedule, number: int, begun_s: float, ended_s: float) -> None:
    run = schedule.run(f"run {number}")
    run.events = [
        {"kind": "dag", "state": "running", "at_s": begun_s},
        {"kind": "dag", "state": "succeeded", "at_s": ended_s},
    ]


def sound() -> Schedule:
    """A slot that ran, two that were skipped behind it, one more, a trigger and a backfill of one slot."""
    body = {"spec": {"interval_s": 10}, "action": {"item": {"topic": "n"}}, "overlap": "skip", "catchup_s": 60}
    schedule = Schedule("s", "red", body, 95.0, is_made=True)
    schedule.asked = [
        Asked("trigger", "T", {}, 145.0, is_possible=True, slots=1, ticks={4}),
        Asked("backfill", "B", {}, 146.0, is_possible=True, slots=1),
    ]
    schedule.ticks = [
        tick(1, "slot", 100.0),
        tick(2, "slot", 110.0, "skipped", reason="overlap", through=at(120.0), slots=2),
        tick(3, "slot", 130.0),
        tick(4, "trigger", 145.0),
        tick(5, "backfill", 110.0),
    ]
    for number, begun_s, ended_s in ((1, 101.0, 125.0), (3, 131.0, 140.0), (4, 145.0, 147.0), (5, 148.0, 149.0)):
        lived(schedule, number, begun_s, ended_s)
    return schedule


def test_a_sound_history_is_sound() -> None:
    assert judge([sound()]) == []


def slot_left_out(schedule: Schedule) -> None:
    del schedule.ticks[1]


def slot_twice(schedule: Schedule) -> None:
    schedule.ticks.append(tick(6, "slot", 130.0, "skipped", reason="overlap"))


def no_slot(schedule: Schedule) -> None:
    schedule.ticks[0] = tick(1, "slot", 101.0)


def before_it_was_made(schedule: Schedule) -> None:
    schedule.sent = 105.0


def early(schedule: Schedule) -> None:
    schedule.ticks[2]["decided_at"] = at(129.0)


def missed_in_time(schedule: Schedule) -> None:
    schedule.ticks[2] = tick(3, "slot", 130.0, "skipped", reason="missed")
    del schedule.runs["run 3"]


def run_without_a_tick(schedule: Schedule) -> None:
    lived(schedule, 9, 150.0, 151.0)


def tick_without_a_run(schedule: Schedule) -> None:
    del schedule.runs["run 3"]


def one_run_of_two(schedule: Schedule) -> None:
    schedule.ticks[2]["run"] = "run 1"


def trigger_twice(schedule: Schedule) -> None:
    schedule.ticks.append(tick(6, "trigger", 150.0))
    lived(schedule, 6, 150.0, 151.0)


def backfill_lost(schedule: Schedule) -> None:
    schedule.asked[1].slots = 2


def buffered_for_ever(schedule: Schedule) -> None:
    schedule.ticks.append(tick(6, "slot", 140.0, "buffered"))


def two_at_once(schedule: Schedule) -> None:
    lived(schedule, 1, 101.0, 135.0)


def test_one_that_was_made_anew_knows_nothing_of_runs_that_go_on() -> None:
    schedule = sound()
    two_at_once(schedule)
    schedule.may_be_deleted = True
    assert judge([schedule]) == []


@pytest.mark.parametrize(
    "break_it",
    [
        slot_left_out,
        slot_twice,
        no_slot,
        before_it_was_made,
        early,
        missed_in_time,
        run_without_a_tick,
        tick_without_a_run,
        one_run_of_two,
        trigger_twice,
        backfill_lost,
        buffered_for_ever,
        two_at_once,
    ],
)
def test_a_broken_promise_is_found(break_it: Callable[[Schedule], None]) -> None:
    schedule = sound()
    break_it(schedule)
    assert judge([schedule])
