"""Schedules' bodies."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from headgate.wire.base import (
    LEASE_S_DEFAULT,
    TTL_S_MAX,
    UUID_PATTERN,
    Attempts,
    ErrorText,
    Instant,
    Json,
    JsonObject,
    LeaseS,
    Priority,
    Request,
    Response,
    TimeoutS,
    Topic,
    TtlS,
    fault,
)
from headgate.wire.building import SubDag
from headgate.wire.queue import Backoff

SLOTS_GIVEN_MAX: Final = 1_000
CATCHUP_S_DEFAULT: Final = 3_600.0

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]
TickKind = Literal["slot", "trigger", "backfill"]
TickDecision = Literal["started", "skipped", "buffered"]
RequestId = Annotated[str, StringConstraints(pattern=UUID_PATTERN)]


class ScheduleSpec(Request):
    """Which times a schedule means: `cron` in the zone `tz` (UTC by default), multiples of `interval_s` since
    1970, or the times in `at`."""

    cron: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    tz: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    interval_s: Annotated[float, Field(ge=1, le=TTL_S_MAX)] | None = None
    at: Annotated[list[Instant], Field(min_length=1, max_length=SLOTS_GIVEN_MAX)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.cron is not None) + (self.interval_s is not None) + (self.at is not None) != 1:
            raise fault("", "give one of cron, interval_s and at")
        if self.tz is not None and self.cron is None:
            raise fault("/tz", "belongs to cron")
        return self


class ScheduledItem(Request):
    """A job to run at each slot: an item, as a DAG of one node."""

    topic: Topic
    payload: Json = None
    metadata: JsonObject | None = None
    priority: Priority = 0
    max_attempts: Attempts = 0
    backoff: Backoff | None = None
    lease_s: LeaseS = float(LEASE_S_DEFAULT)
    ttl_s: TtlS | None = None
    timeout_s: TimeoutS | None = None


class ScheduleAction(Request):
    """What a run is: an item, or a DAG."""

    item: ScheduledItem | None = None
    dag: SubDag | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.item is None) == (self.dag is None):
            raise fault("", "give one of item and dag")
        return self


class PutSchedule(Request):
    """A schedule. `paused`: where it is not said, it stays as it is."""

    spec: ScheduleSpec
    action: ScheduleAction
    overlap: Overlap = "skip"
    catchup_s: Annotated[float, Field(ge=10, le=TTL_S_MAX)] = CATCHUP_S_DEFAULT
    jitter_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    paused: bool | None = None


class PauseSchedule(Request):
    reason: ErrorText | None = None


class TriggerSchedule(Request):
    """A run now; `at` is the time that it is told, now if it is not said."""

    at: Instant | None = None
    request_id: RequestId | None = None


class BackfillSchedule(Request):
    """The slots after `start` up to `end` once more; `overlap` in place of the schedule's."""

    start: Instant
    end: Instant
    overlap: Overlap | None = None
    request_id: RequestId | None = None

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end <= self.start:
            raise fault("/end", "must be after start")
        return self


class ScheduleSpecView(Response):
    cron: str | None = None
    tz: str | None = None
    interval_s: float | None = None
    at: list[datetime] | None = None


class Schedule(Response):
    """A schedule; `next_at` is its next slot, null where none is left."""

    id: str
    namespace: str
    spec: ScheduleSpecView
    action: dict[str, Any]
    overlap: Overlap
    catchup_s: float
    jitter_s: float
    paused: bool
    reason: str | None = None
    next_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


class ScheduleDeleted(Response):
    """`deleted`: whether there was one."""

    id: str
    deleted: bool


class Tick(Response):
    """What became of a slot, or of `slots` of them in a row, from `at` through `through`; `run` is a DAG's id."""

    tick: int
    kind: TickKind
    at: datetime
    through: datetime
    slots: int
    decision: TickDecision
    reason: str | None = None
    run: str | None = None
    decided_at: datetime


class Backfilled(Response):
    """How many slots a backfill has brought."""

    slots: int
