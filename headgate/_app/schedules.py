"""Functions that run by the clock."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headgate import wire
from headgate._app.cron import Cron

if TYPE_CHECKING:
    from headgate._app.function import JobFunction

# What happens at a time at which the run before is still at work.
Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]

# Within which bounds.
_MORE: Final = {"catchup_s": (10, wire.TTL_S_MAX), "jitter_s": (0, 86_400)}


@dataclass(kw_only=True)
class Every:
    """When a function runs."""

    name: str
    cron: str | None
    every_s: float | None
    tz: str
    overlap: Overlap
    more: Mapping[str, float] = field(default_factory=dict)
    function: "JobFunction[..., Any, ..., Any] | None" = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_s is None):
            raise ValueError(f"give schedule {self.name!r} either cron= or every_s=")
        if self.every_s is not None and not self.every_s > 0:
            raise ValueError(f"every_s of schedule {self.name!r} must be more than 0")
        if self.overlap not in get_args(Overlap):
            raise ValueError(f"overlap of schedule {self.name!r} is one of {', '.join(get_args(Overlap))}")
        for name, (least, most) in _MORE.items():
            if name in self.more and not least <= self.more[name] <= most:
                raise ValueError(f"{name} of schedule {self.name!r} is from {least:,} to {most:,} seconds")
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"there is no time zone {self.tz!r}; they are named like Europe/Paris") from None
        if self.cron is not None:
            Cron(self.cron, self.tz)

    def after(self, moment: datetime) -> datetime | None:
        """The first time after `moment`; None where there is none."""
        if self.every_s is not None:
            number = moment.timestamp() // self.every_s + 1
            return datetime.fromtimestamp(number * self.every_s, tz=moment.tzinfo)
        assert self.cron is not None
        return Cron(self.cron, self.tz).after(moment)

    def check(self) -> None:
        """Raises ValueError for a function that needs more than the time that it is run for."""
        assert self.function is not None
        if missing := self.function.signature.missing({"at": None}):
            raise ValueError(
                f"schedule {self.name!r}: {self.function.name} is called with nothing but `at`, so "
                f"`{missing[0]}` needs "
                "a default"
            )

    def options(self) -> dict[str, Any]:
        """What the service is told: the times, and the item to make at each of them."""
        function = self.function
        assert function is not None
        times: dict[str, Any] = {"interval_s": self.every_s}
        if self.cron is not None:
            times = {"cron": Cron(self.cron, self.tz).text, "tz": self.tz}
        item = function.settings.node_options()
        payload = {"fn": function.name, "v": function.version, "args": {}, "slot": True}
        return {**times, **item, "topic": function.topic, "payload": payload, "overlap": self.overlap, **self.more}


def ticks(schedules: Iterable[Every], after: datetime, until: datetime) -> Iterator[tuple[datetime, Every]]:
    """The times of all schedules in (after, until], in order."""
    waiting: list[tuple[datetime, int, Every]] = []
    for number, schedule in enumerate(schedules):
        if (first := schedule.after(after)) is not None:
            heapq.heappush(waiting, (first, number, schedule))
    while waiting and waiting[0][0] <= until:
        moment, number, schedule = heapq.heappop(waiting)
        yield moment, schedule
        if (later := schedule.after(moment)) is not None:
            heapq.heappush(waiting, (later, number, schedule))
