"""The bodies of what is done to many items at once."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from headgate.wire.base import (
    METADATA_BYTES_MAX,
    ErrorText,
    ItemId,
    ItemState,
    JsonObject,
    LeasedDag,
    Moment,
    Priority,
    Request,
    Response,
    Topic,
    encoded_bytes,
    fault,
)

OperationKind = Literal["purge", "redrive", "cancel"]
OperationState = Literal["running", "done", "cancelled"]
ShardProgressState = Literal["running", "done", "cancelled", "waiting", "unreachable"]


class OperationFilter(Request):
    """What items must be like; what is left out does not matter."""

    topic: Topic | None = None
    state: ItemState | None = None
    error: ErrorText | None = None
    priority_min: Priority | None = None
    priority_max: Priority | None = None
    enqueued_before: Moment | None = None
    enqueued_after: Moment | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.priority_min, self.priority_max
        if low is not None and high is not None and low > high:
            raise fault("/priority_min", "must not be above priority_max: no item could be meant")
        after, before = self.enqueued_after, self.enqueued_before
        if after is not None and before is not None and after >= before:
            raise fault("/enqueued_after", "must be before enqueued_before: no item could be meant")
        if self.metadata is not None and encoded_bytes(self.metadata) > METADATA_BYTES_MAX:
            raise fault("/metadata", f"must be at most {METADATA_BYTES_MAX} bytes of JSON")
        return self


class OperationSpec(Request):
    """`dry_run` shows what would be taken, and changes nothing. The same `id` again is the same operation."""

    kind: OperationKind
    id: ItemId | None = None
    filter: OperationFilter = OperationFilter()
    dry_run: bool = False

    @model_validator(mode="after")
    def _meant(self) -> Self:
        given = self.filter.model_dump(exclude_none=True)
        if not given and self.kind != "redrive":
            raise fault("/filter", "an empty filter is every item of the namespace; name a topic, or a time")
        if self.kind == "redrive" and self.filter.state not in (None, "dead"):
            raise fault("/filter/state", "only dead items are redriven")
        if self.kind == "cancel" and self.filter.state == "dead":
            raise fault("/filter/state", "a dead item has ended; purge it, or redrive it")
        return self


class ShardProgress(Response):
    """How far an operation is on one shard. `waiting`: the shard was away when it was asked for."""

    shard: int
    state: ShardProgressState
    total: int = 0
    scanned: int = 0
    changed: int = 0
    skipped: int = 0


class Operation(Response):
    """What is being done to many items, and how far that is.

    `total` is what the topic, or namespace, held in the filter's states when it began, `scanned` how many of
    those were looked at, `changed` what was done, `skipped` what was meant and left alone: a DAG's items, and
    such as had moved on.
    """

    id: str
    namespace: str
    kind: OperationKind
    filter: OperationFilter
    dry_run: bool = False
    state: OperationState
    requested_at: datetime
    finished_at: datetime | None = None
    total: int = 0
    scanned: int = 0
    changed: int = 0
    skipped: int = 0
    shards: list[ShardProgress] = Field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.state != "running"


class OperationPreview(Response):
    """What an operation would take; `exact` unless there was no time to look at all of it, or shards are away."""

    dry_run: bool = True
    id: str | None = Field(None, description="one to begin it with: sent with it, it may be sent again")
    namespace: str
    kind: OperationKind
    filter: OperationFilter
    matched: int
    exact: bool
    scanned: int = 0
    skipped: int = 0
    sample: list[str] = Field(default_factory=list)
    away: list[int] = Field(
        default_factory=list,
        description="shards that did not answer: what is there is not counted; an operation waits for them",
    )


class OperationRef(Response):
    """The operation behind a purge or redrive; while it is `running`, it goes on by itself."""

    id: str
    state: OperationState


class DeadGroup(Response):
    """Dead items of one topic with the same kind of error; `sample_id` is the one that died last.

    `managed` of them are items of DAGs, which neither redrive nor purge touches: a retry in the DAG runs the node
    again, and takes the dead item away. `dag` is the node of the one of these that died last.
    """

    error: str
    topic: str
    count: int
    oldest: datetime
    newest: datetime
    sample_id: str
    managed: int = 0
    dag: LeasedDag | None = None
