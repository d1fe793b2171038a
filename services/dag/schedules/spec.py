"""Which times a schedule means: cron in a time zone, multiples of an interval, or given times.

Cron is Debian's, as `cronsim` has it: a time of day that falls into the gap of a change of clocks comes at its
end, one that exists twice comes the first time; what runs every hour, or every few minutes, goes by real time.
"""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

from cronsim import CronSim, CronSimError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CRON_CHARS_MAX: Final = 200
_CRON_FIELDS: Final = 5


class Passed(NamedTuple):
    """Slots in a row: how many, the last of them, and the slot after it, if there is one."""

    slots: int
    through: datetime
    following: datetime | None


class Times:
    """The slots of a schedule."""

    def after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment, in UTC; None when there is none."""
        raise NotImplementedError

    def passed(self, first: datetime, before: datetime, slots_max: int) -> Passed:
        """The slots from `first` on that are before `before`, at most so many where they are counted one by
        one."""
        slots, through = 1, first
        following = self.after(first)
        while following is not None and following < before and slots < slots_max:
            slots, through = slots + 1, following
            following = self.after(following)
        return Passed(slots, through, following)


@dataclass(frozen=True)
class Cron(Times):
    """Five fields, in a time zone."""

    expression: str
    zone: str

    def after(self, moment: datetime) -> datetime | None:
        # Its times begin in 1970: a moment near the first that can be told is out of range in some zones.
        local = max(moment, _EPOCH).astimezone(_zone(self.zone))
        for found in CronSim(self.expression, local):
            # In an hour that exists twice, times of the first one come once more.
            if found > moment:
                return found.astimezone(UTC)
        return None


@dataclass(frozen=True)
class Interval(Times):
    """Multiples of an interval since 1970."""

    interval: timedelta

    def after(self, moment: datetime) -> datetime | None:
        return _EPOCH + ((moment - _EPOCH) // self.interval + 1) * self.interval

    def passed(self, first: datetime, before: datetime, slots_max: int) -> Passed:
        slots = max(1, -((first - before) // self.interval))
        through = first + (slots - 1) * self.interval
        return Passed(slots, through, through + self.interval)


@dataclass(frozen=True)
class GivenTimes(Times):
    """GivenTimes times, ascending."""

    times: tuple[datetime, ...]

    def after(self, moment: datetime) -> datetime | None:
        return next((time for time in self.times if time > moment), None)


def cron(expression: str, zone: str) -> Cron:
    """Times by a cron expression.

    Raises:
        ValueError: it is none, or names no time.
    """
    if len(expression) > _CRON_CHARS_MAX:
        raise ValueError(f"a cron expression has at most {_CRON_CHARS_MAX} characters")
    if len(expression.split()) != _CRON_FIELDS:
        raise ValueError("a cron expression has five fields: minute, hour, day of month, month, day of week")
    times = Cron(expression, zone)
    try:
        found = times.after(_EPOCH)
    except (CronSimError, ValueError) as error:
        raise ValueError(f"this is no cron expression: {error}") from None
    if found is None:
        raise ValueError("this cron expression names no time in 50 years")
    return times


@cache
def zones() -> frozenset[str]:
    """The time zones that there are."""
    return frozenset(zoneinfo.available_timezones())


@cache
def _zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)


def load(text: str) -> Times:
    """The times of a spec as it is stored: JSON text, as it was said."""
    said = json.loads(text)
    if "cron" in said:
        return Cron(said["cron"], said.get("tz", "UTC"))
    if "interval_s" in said:
        return Interval(timedelta(seconds=said["interval_s"]))
    return GivenTimes(_moments(said["at"]))


def _moments(times: Sequence[str]) -> tuple[datetime, ...]:
    return tuple(sorted({datetime.fromisoformat(time).astimezone(UTC) for time in times}))
