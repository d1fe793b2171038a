"""What jobs log: the bodies that write it, and those that show it."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from headgate.wire.base import (
    INT32_MAX,
    LOG_AGE_S_MAX,
    Batch,
    Label,
    LogLevel,
    LogStatus,
    LogText,
    OpaqueId,
    Page,
    Request,
    Response,
)
from headgate.wire.queue import ElementResult


class LogLine(Request):
    """One line. `age_s` is how long before the call it was logged: the time that is kept is the shard's."""

    text: LogText
    level: LogLevel = "info"
    logger: Label | None = None
    age_s: Annotated[float, Field(ge=0, le=LOG_AGE_S_MAX)] = 0.0


class LogBatch(Request):
    """Lines of one item, in their order. `attempt` is that of the lease, whose batches `number` counts from 1."""

    id: OpaqueId
    lease_token: OpaqueId
    attempt: Annotated[int, Field(ge=1, le=INT32_MAX)]
    number: Annotated[int, Field(ge=1, le=INT32_MAX)]
    lines: Batch[LogLine]


class LogsRequest(Request):
    items: Batch[LogBatch]


class LogResult(ElementResult):
    """`full`: the log of the item, or of its namespace, takes no more."""

    status: LogStatus


class LogEntry(Response):
    """A line that a job has logged; `at` is by the shard's clock."""

    at: datetime
    level: LogLevel
    logger: str | None = None
    text: str
    attempt: int
    worker: str | None = None


class LogPage(Page[LogEntry]):
    """A page of a log; `tail`, as `cursor`, goes on behind it, also where there is no more yet."""

    tail: str
