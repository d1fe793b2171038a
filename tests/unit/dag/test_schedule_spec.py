"""Which times a schedule means: cron over changes of clocks, intervals, given times."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dag.schedules import policy, spec
from services.dag.schedules.policy import Situation

PARIS = "Europe/Paris"
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def slots(times: spec.Times, after: str, count: int) -> list[str]:
    """The first slots after a moment, in UTC."""
    moment: datetime | None = datetime.fromisoformat(after).astimezone(UTC)
    found = []
    while moment is not None and len(found) < count:
        moment = times.after(moment)
        if moment is not None:
            found.append(f"{moment:%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        # 2026-03-29 02:00 to 03:00 does not exist in Paris.
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["03-29 01:00", "03-30 00:30"]),
        ("0,30 2 * * *", "2026-03-28T12:00+01:00", ["03-29 01:00", "03-30 00:00", "03-30 00:30"]),
        ("30 * * * *", "2026-03-29T01:00+01:00", ["03-29 00:30", "03-29 01:30"]),
        # 2026-10-25 02:00 to 03:00 exists twice.
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["10-25 00:30", "10-26 01:30"]),
        ("50 2 * * *", "2026-10-25T02:45+01:00", ["10-26 01:50"]),
        ("30 * * * *", "2026-10-25T01:45+02:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
        ("*/30 * * * *", "2026-10-25T02:15+02:00", ["10-25 00:30", "10-25 01:00", "10-25 01:30"]),
        ("0 3 * * *", "2026-10-24T12:00+02:00", ["10-25 02:00"]),
        ("0 0 L * *", "2026-01-01T00:00+01:00", ["01-30 23:00", "02-27 23:00", "03-30 22:00"]),
        ("0 9 * * MON-FRI", "2026-06-05T12:00+02:00", ["06-08 07:00"]),
    ],
)
def test_cron_over_changes_of_clocks(expression: str, after: str, expected: list[str]) -> None:
    assert slots(spec.cron(expression, PARIS), after, len(expected)) == expected


@given(
    minute=st.sampled_from(["*", "*/7", "0", "30", "0,30", "59"]),
    hour=st.sampled_from(["*", "*/2", "2", "1,2,3", "2-3"]),
    zone=st.sampled_from([PARIS, "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu"]),
    minutes=st.integers(0, 366 * 24 * 60),
)
def test_slots_follow_one_another_wherever_one_begins(minute: str, hour: str, zone: str, minutes: int) -> None:
    """Each slot is the one after the slot before, and after any moment in between."""
    times = spec.cron(f"{minute} {hour} * * *", zone)
    found = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)]
    for _ in range(30):
        following = times.after(found[-1])
        assert following is not None
        found.append(following)
    assert all(early < late for early, late in pairwise(found))
    for early, late in pairwise(found[1:]):
        assert times.after(early + (late - early) / 2) == late
        assert times.after(late - timedelta(microseconds=1)) == late


def test_multiples_of_an_interval() -> None:
    times = spec.load('{"interval_s": 3600}')
    assert times.after(NOW) == NOW + timedelta(hours=1)
    assert times.after(NOW - timedelta(microseconds=1)) == NOW
    passed = times.passed(NOW, NOW + timedelta(days=365, minutes=1), 10)
    assert passed == (8761, NOW + timedelta(days=365), NOW + timedelta(days=365, hours=1))
    assert times.passed(NOW, NOW + timedelta(hours=2), 10).slots == 2
    assert times.passed(NOW, NOW - timedelta(hours=2), 10).slots == 1
    odd = spec.load('{"interval_s": 1.5}')
    assert odd.after(NOW) == NOW + timedelta(seconds=1.5)


def test_given_times_come_to_an_end() -> None:
    times = spec.load('{"at": ["2026-06-02T00:00:00Z", "2026-06-01T14:00:00+02:00", "2026-06-02T00:00:00Z"]}')
    assert times.after(NOW - timedelta(seconds=1)) == NOW
    assert times.after(NOW) == datetime(2026, 6, 2, tzinfo=UTC)
    assert times.after(datetime(2026, 6, 2, tzinfo=UTC)) is None


def test_many_slots_of_cron_are_counted_in_parts() -> None:
    times = spec.cron("* * * * *", "UTC")
    passed = times.passed(NOW, NOW + timedelta(days=1), 100)
    assert passed == (100, NOW + timedelta(minutes=99), NOW + timedelta(minutes=100))


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "0 0 31 2 *",
        "@daily",
        "0 0 * * FOO",
        "*/0 * * * *",
        "1-0 * * * *",
        "9" * 150 + " * * * *",
        "² * * * *",
        "0 " * 150,
        "0 0 L/0 * *",
        "0 0 * * L",
        "0 0 * * #",
        "0 0 * * 1#9",
        ", * * * *",
        "-1 * * * *",
    ],
)
def test_what_is_no_cron_expression(expression: str) -> None:
    with pytest.raises(ValueError, match="cron expression"):
        spec.cron(expression, "UTC")


def test_a_part_of_the_jitter_is_the_same_whoever_asks() -> None:
    dues = [policy.due_at(7, NOW + timedelta(hours=n), 60) - timedelta(hours=n) for n in range(50)]
    assert dues == [policy.due_at(7, NOW + timedelta(hours=n), 60) - timedelta(hours=n) for n in range(50)]
    assert all(NOW <= due < NOW + timedelta(seconds=60) for due in dues) and len(set(dues)) == 50
    assert policy.due_at(7, NOW, 0) == NOW


@pytest.mark.parametrize(
    ("overlap", "unfinished", "buffered", "decided"),
    [
        ("skip", False, False, ("started", None)),
        ("skip", True, False, ("skipped", "overlap")),
        ("allow", True, True, ("started", None)),
        ("buffer_one", True, 0, ("buffered", None)),
        ("buffer_one", True, 1, ("skipped", "overlap")),
        ("buffer_all", True, 99, ("buffered", None)),
        ("buffer_all", True, 100, ("skipped", "overlap")),
        ("buffer_all", False, 0, ("started", None)),
        ("cancel_other", True, 0, ("buffered", None)),
        ("cancel_other", True, 1, ("skipped", "overlap")),
        ("cancel_other", False, 0, ("started", None)),
        ("terminate_other", True, 0, ("started", None)),
        ("buffer_one", False, False, ("started", None)),
    ],
)
def test_what_becomes_of_a_slot(overlap: str, unfinished: bool, buffered: int, decided: Any) -> None:
    situation = Situation(NOW, unfinished, buffered)
    late = timedelta(seconds=3600)
    asked = {"overlap": overlap, "catchup_s": 3600.0}
    assert policy.decide(situation, due=NOW - late, paused=False, **asked) == decided  # type: ignore[arg-type]
    too_late = NOW - late - timedelta(seconds=1)
    assert policy.decide(situation, due=too_late, paused=False, **asked) == ("skipped", "missed")  # type: ignore[arg-type]
    assert policy.decide(situation, due=NOW, paused=True, **asked) == ("skipped", "paused")  # type: ignore[arg-type]
