"""Times of cron expressions, over the days on which clocks change."""

from datetime import UTC, datetime

import pytest

from headgate import App
from headgate._app.cron import Cron


def times(text: str, tz: str, after: str, count: int) -> list[str]:
    found = []
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    cron = Cron(text, tz)
    for _ in range(count):
        later = cron.after(moment)
        assert later is not None
        found.append(later.isoformat()[:16])
        moment = later
    return found


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*/20 * * * *", "2030-01-01T00:00", ["2030-01-01T00:20", "2030-01-01T00:40", "2030-01-01T01:00"]),
        ("0 9-17/4 * * mon-fri", "2030-01-04T12:00", ["2030-01-04T13:00", "2030-01-04T17:00", "2030-01-07T09:00"]),
        ("0 0 31 * *", "2030-01-31T00:00", ["2030-03-31T00:00", "2030-05-31T00:00"]),
        ("0 0 29 feb *", "2029-01-01T00:00", ["2032-02-29T00:00"]),
        ("0 0 13 * 5", "2030-01-01T00:00", ["2030-01-04T00:00", "2030-01-11T00:00", "2030-01-13T00:00"]),
        ("@weekly", "2030-01-01T00:00", ["2030-01-06T00:00", "2030-01-13T00:00"]),
        ("5,10 1 * * 7", "2030-01-01T00:00", ["2030-01-06T01:05", "2030-01-06T01:10"]),
    ],
)
def test_times_of_an_expression(text: str, after: str, expected: list[str]) -> None:
    assert times(text, "UTC", after, len(expected)) == expected


def test_a_skipped_time_is_at_the_end_of_the_gap_and_a_repeated_one_comes_once() -> None:
    paris = "Europe/Paris"
    assert times("30 2 * * *", paris, "2030-03-30T12:00", 2) == ["2030-03-31T01:00", "2030-04-01T00:30"]
    assert times("30 2 * * *", paris, "2030-10-26T12:00", 2) == ["2030-10-27T00:30", "2030-10-28T01:30"]


def test_a_time_that_never_comes_is_none() -> None:
    assert Cron("0 0 30 2 *", "UTC").after(datetime(2030, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "* * * *"}, "has 4 fields"),
        ({"cron": "61 * * * *"}, "'61' is no minute"),
        ({"cron": "* * * * tod"}, "'tod' is no day of the week"),
        ({"cron": "* * * * *", "every_s": 5}, "either cron= or every_s="),
        ({"cron": "* * * * *", "tz": "Europe/Pari"}, "no time zone 'Europe/Pari'"),
        ({"cron": "* * * * *", "overlap": "sometimes"}, "is one of skip"),
        ({"every_s": 0}, "more than 0"),
    ],
)
def test_wrong_schedules_are_refused_where_they_are_written(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        App("a").every("x", **options)  # type: ignore[arg-type]
