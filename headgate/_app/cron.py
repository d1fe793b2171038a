"""Times of a cron expression, in a time zone. A time that the clock skips is at the end of the gap; one that it
shows twice is the first of the two."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

_NAMES: Final = {
    3: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    4: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_YEARS_MAX: Final = 8


class Cron:
    """Minute, hour, day of the month, month, day of the week."""

    def __init__(self, text: str, tz: str) -> None:
        self.text = _SHORT.get(text.strip(), text)
        fields = self.text.split()
        if len(fields) != 5:
            raise ValueError(f"cron {text!r} has {len(fields)} fields; it has five: minute hour day month weekday")
        self._zone = ZoneInfo(tz)
        minutes, hours, days, months, weekdays = (_parsed(field, at, text) for at, field in enumerate(fields))
        self._minutes, self._hours, self._days, self._months = sorted(minutes), sorted(hours), days, months
        self._weekdays = {day % 7 for day in weekdays}
        # As in every cron: where both days are restricted, either will do.
        self._either = fields[2] != "*" and fields[4] != "*"

    def after(self, moment: datetime) -> datetime | None:
        """The first time after `moment`, in UTC; None where there is none within years."""
        local = moment.astimezone(self._zone)
        day = local.date() - timedelta(days=1)
        for _ in range(366 * _YEARS_MAX):
            if day.month in self._months and self._is_day(day.day, day.isoweekday() % 7):
                for hour in self._hours:
                    for minute in self._minutes:
                        found = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone)
                        found = _existing(found).astimezone(UTC)
                        if found > moment:
                            return found
            day += timedelta(days=1)
        return None

    def _is_day(self, day: int, weekday: int) -> bool:
        if self._either:
            return day in self._days or weekday in self._weekdays
        return day in self._days and weekday in self._weekdays


def _existing(local: datetime) -> datetime:
    """A local time, or where the clock skips it, the end of the gap."""
    if local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None):
        return local
    start = (local - timedelta(hours=3)).replace(second=0)
    found = start.astimezone(UTC)
    while found.astimezone(local.tzinfo).utcoffset() == start.utcoffset():
        found += timedelta(minutes=1)
    return found


def _parsed(field: str, at: int, whole: str) -> set[int]:
    low, high = _RANGES[at]
    found: set[int] = set()
    for part in field.lower().split(","):
        span, _, step_text = part.partition("/")
        try:
            step = int(step_text) if step_text else 1
            first, _, last = span.partition("-")
            if span == "*":
                start, end = low, 6 if at == 4 else high
            else:
                start = _number(first, at)
                end = _number(last, at) if last else (high if step_text else start)
        except ValueError:
            raise ValueError(f"cron {whole!r}: {part!r} is no {_FIELDS[at]}") from None
        if step < 1 or not low <= start <= end <= high:
            raise ValueError(f"cron {whole!r}: {part!r} is no {_FIELDS[at]}, which is {low} to {high}")
        found |= set(range(start, end + 1, step))
    return found


_FIELDS: Final = ("minute", "hour", "day of the month", "month", "day of the week")


def _number(text: str, at: int) -> int:
    names = _NAMES.get(at, ())
    if text in names:
        return names.index(text) + (1 if at == 3 else 0)
    return int(text)
