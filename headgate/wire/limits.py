"""Limits of topics: what they hand out at most, and what is throttled."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from headgate.wire.base import INT32_MAX, KEY_CONCURRENCY_MAX, Label, Request, Response, Topic, fault


class TopicLimits(Request):
    """All limits of a topic; what is left out is off. Without `rate` there is no `burst`."""

    topic: Topic
    rate: Annotated[float, Field(ge=0.001, le=1_000_000)] | None = None
    burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    key_rate: Annotated[float, Field(ge=0.001, le=1_000_000)] | None = None
    key_burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    key_concurrency: Annotated[int, Field(ge=1, le=KEY_CONCURRENCY_MAX)] | None = None

    @model_validator(mode="after")
    def _rated(self) -> Self:
        if self.burst is not None and self.rate is None:
            raise fault("/burst", "belongs to rate")
        if self.key_burst is not None and self.key_rate is None:
            raise fault("/key_burst", "belongs to key_rate")
        return self


class Unthrottle(Request):
    """Which throttles end: those of a topic and all its keys, or that of one key."""

    topic: Topic
    key: Label | None = None


class ThrottledKey(Response):
    """A fairness key of which nothing is handed out until then."""

    key: str
    until: datetime


class TopicLimitsView(Response):
    """The limits of a topic, and of each fairness key of it (`key_*`): items a second, how many of them at once,
    how many in flight; how many are. And what is throttled now: the topic, and the first of its keys."""

    topic: str
    rate: float | None = None
    burst: int = 1
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int = 1
    key_concurrency: int | None = None
    in_flight: int = 0
    throttled_until: datetime | None = None
    throttled_keys: list[ThrottledKey] = Field(default_factory=list)
