"""What workers tell of themselves and of their jobs."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from headgate.wire.base import (
    BATCH_MAX,
    LEASE_S_DEFAULT,
    WAIT_S_MAX,
    Label,
    LeaseS,
    Request,
    Response,
    Topic,
    clean_text,
)

PROGRESS_MAX: Final = 10**15
NOTE_CHARS_MAX: Final = 200
WORKER_TOPICS_MAX: Final = 100
AGE_S_MAX: Final = 10 * 366 * 86_400


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


Amount = Annotated[float, Field(ge=0, le=PROGRESS_MAX), AfterValidator(_whole)]
Note = Annotated[str, StringConstraints(max_length=NOTE_CHARS_MAX), AfterValidator(clean_text)]


class Progress(Request):
    """How far a job has come: so much is done, of so much in all, if that is known; it may turn out to be more."""

    done: Amount
    total: Amount | None = None
    note: Note | None = None


class ProgressView(Response):
    """What the holder of an item last told of how far it has come, and when, by the shard's clock."""

    done: int | float
    total: int | float | None = None
    note: str | None = None
    at: datetime


class WorkerTopic(Request):
    topic: Topic
    slots: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    running: Annotated[int, Field(ge=0, le=BATCH_MAX)] = 0


class WorkerReport(Request):
    """What a worker says of itself: it is there for `lease_s` from now. `age_s` is for how long it has been there,
    `version` that of its code. With `leaving` it goes."""

    name: Label
    host: Label | None = None
    version: Label | None = None
    topics: Annotated[list[WorkerTopic], Field(max_length=WORKER_TOPICS_MAX)] = Field(default_factory=list)
    lease_s: LeaseS = float(LEASE_S_DEFAULT)
    age_s: Annotated[float, Field(ge=0, le=AGE_S_MAX)] = 0.0
    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0
    leaving: bool = False


class WorkerNews(Response):
    """Items that were cancelled a moment ago while somebody held them."""

    cancelled: list[str]


class WorkerTopicView(Response):
    """`slots` and `running` are there where the worker has reported itself."""

    topic: str
    slots: int | None = None
    running: int | None = None


class WorkerView(Response):
    """A worker by its name. Of one that only names itself in dequeues, topics and times are known."""

    name: str
    state: Literal["alive", "gone"]
    host: str | None = None
    version: str | None = None
    topics: list[WorkerTopicView]
    slots: int | None = None
    running: int | None = None
    since: datetime
    last_seen: datetime
