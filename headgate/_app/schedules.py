"""Functions that run by the clock."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from headgate._app.function import JobFunction

# What happens at a time at which the run before is still at work.
Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]


@dataclass(kw_only=True)
class Every:
    """When a function runs."""

    name: str
    cron: str | None
    every_s: float | None
    tz: str
    overlap: Overlap
    function: "JobFunction[..., Any, ..., Any] | None" = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_s is None):
            raise ValueError(f"give schedule {self.name!r} either cron= or every_s=")
        if self.every_s is not None and not self.every_s > 0:
            raise ValueError(f"every_s of schedule {self.name!r} must be more than 0")
        if self.overlap not in get_args(Overlap):
            raise ValueError(f"overlap of schedule {self.name!r} is one of {', '.join(get_args(Overlap))}")
        try:
            ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"there is no time zone {self.tz!r}; they are named like Europe/Paris") from None
