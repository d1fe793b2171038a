"""What operators are shown: the last hour, and what happened meanwhile."""

from typing import Literal

from pydantic import Field

from headgate.wire.base import Response

MarkKind = Literal["start", "drain", "move", "failover", "owner", "breaker"]


class Me(Response):
    """What a caller's token allows; without a tokens file, everything but scope `dag`."""

    token: str | None = Field(default=None, description="the token's id, which is not secret")
    scopes: list[str]
    namespaces: list[str] | None = Field(default=None, description="null: all")


class HistoryLine(Response):
    """Points of one metric, oldest first; null where nothing was sampled."""

    metric: str
    shard: int | None = None
    namespace: str | None = None
    topic: str | None = None
    values: list[float | None]


class HistoryMark(Response):
    """Something that a process saw happen."""

    at_s: float
    kind: MarkKind
    shard: int | None = None
    text: str
    process: str


class History(Response):
    """The last hour of a service's shards, as its processes remember it."""

    begins_at_s: float = Field(description="of the first point, seconds since the epoch")
    step_s: float = Field(description="from one point to the next")
    points: int
    series: list[HistoryLine]
    marks: list[HistoryMark]
    processes: list[str] = Field(description="who has answered")
    silent: int = Field(description="processes that were asked and have not answered in time")
    left_out: int = Field(description="series over the limits of a process or of the answer")
