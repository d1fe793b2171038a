"""The queue service's bodies."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self

from pydantic import Field, model_validator

from headgate.wire.base import (
    BATCH_MAX,
    LEASE_S_DEFAULT,
    SHARES_MAX,
    SHARES_SUM_MAX,
    WAIT_S_MAX,
    AckStatus,
    AckTopic,
    Attempts,
    Batch,
    ByteQuota,
    CancelStatus,
    Count,
    DelayS,
    Delivery,
    EnqueueStatus,
    ErrorText,
    ExtendStatus,
    Headers,
    ItemId,
    ItemOutcome,
    ItemState,
    Json,
    JsonObject,
    Key,
    Label,
    LeasedDag,
    LeaseS,
    LookStatus,
    MaybeNone,
    Moment,
    NackStatus,
    OpaqueId,
    Outcome,
    Priority,
    Quota,
    Request,
    Response,
    ReviveStatus,
    ShardState,
    T,
    ThrottleS,
    TimeoutS,
    Topic,
    TtlS,
    fault,
)
from headgate.wire.operations import OperationRef
from headgate.wire.workers import Progress, ProgressView

# Requests


class Backoff(Request):
    """Redelivery waits `min(base_s * factor ** (attempt - 1), max_s)`, spread over `jitter` times that: behind it,
    or before `max_s` where it would pass that. `base_s: 0` is at once."""

    base_s: DelayS = 1.0
    factor: Annotated[float, Field(ge=0, le=1_000)] = 2.0
    max_s: DelayS = 300.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2


def check_deadline(deadline_s: float | None, ttl_s: float | None, delay_s: float | None) -> None:
    """Raises ValueError for a deadline that contradicts what else is said."""
    if deadline_s is None:
        return
    if ttl_s is not None:
        raise fault("/deadline_s", "deadline_s and ttl_s exclude one another: a deadline holds also while leased")
    if delay_s is not None and deadline_s < delay_s:
        raise fault("/deadline_s", "must not be shorter than delay_s: the item could never be delivered")


class Item(Request):
    topic: Topic
    id: ItemId | None = None
    payload: Json = None
    metadata: JsonObject | None = None
    inputs: Json = None
    priority: Priority = 0
    deliver_after: Moment | None = None
    delay_s: DelayS | None = None
    lease_s: LeaseS = float(LEASE_S_DEFAULT)
    ttl_s: TtlS | None = None
    disabled: bool = False
    delivery: Delivery = "at_least_once"
    max_attempts: Attempts = 0
    backoff: Backoff | None = None
    idempotency_key: Key | None = None
    unique: bool = False
    ack_topic: AckTopic | None = None
    ack_context: JsonObject | None = None
    affinity: Key | None = None
    fairness_key: Label | None = None
    headers: Headers | None = None
    timeout_s: TimeoutS | None = None
    deadline_s: TtlS | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_deadline(self.deadline_s, self.ttl_s, self.delay_s)
        if self.delay_s is not None:
            if self.deliver_after is not None:
                raise fault("/delay_s", "deliver_after and delay_s exclude one another")
            if self.ttl_s is not None and self.ttl_s < self.delay_s:
                raise fault("/ttl_s", "must not be shorter than delay_s: the item could never be delivered")
        if self.idempotency_key is not None:
            for field in ("id", "affinity"):
                if getattr(self, field) is not None:
                    raise fault("/idempotency_key", f"idempotency_key and {field} exclude one another")
        elif self.unique:
            raise fault("/unique", "belongs to idempotency_key")
        return self


class EnqueueRequest(Request):
    items: Batch[Item]


class TopicDemand(Request):
    topic: Topic
    count: Count = 1


class AckItem(Request):
    id: OpaqueId
    lease_token: str
    output: Json = None


class AckRequest(Request):
    items: Batch[AckItem]


class NackItem(Request):
    id: OpaqueId
    lease_token: str
    delay_s: DelayS | None = None
    metadata: JsonObject | None = None
    error: ErrorText | None = None
    final: bool = False
    costs_attempt: bool = True
    throttle_s: ThrottleS | None = Field(
        None, description="nothing of the topic is handed out to anybody for so long"
    )
    throttle_key: Label | None = Field(
        None, description="with `throttle_s`: only items with this `fairness_key` are not handed out"
    )

    @model_validator(mode="after")
    def _throttled(self) -> Self:
        if self.throttle_key is not None and self.throttle_s is None:
            raise fault("/throttle_key", "belongs to throttle_s")
        return self


class NackRequest(Request):
    items: Batch[NackItem]


class Settle(Request):
    """What a dequeue acks and nacks first, as calls of those verbs would: acks, then nacks."""

    acks: MaybeNone[AckItem] | None = None
    nacks: MaybeNone[NackItem] | None = None


class DequeueRequest(Request):
    """`topics` may be empty where something is settled: then that is all the call does."""

    topics: MaybeNone[TopicDemand]
    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0
    lease_s: LeaseS | None = None
    worker: Label | None = None
    settle: Settle | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if not self.topics and not (self.settle and (self.settle.acks or self.settle.nacks)):
            raise fault("/topics", "must have at least 1 item where the call settles nothing")
        if sum(demand.count for demand in self.topics) > BATCH_MAX:
            raise fault("/topics", f"counts must add up to at most {BATCH_MAX}")
        return self


class ExtendItem(Request):
    """`progress`, if given, is shown with the item until it is told anew or the lease ends."""

    id: OpaqueId
    lease_token: str
    lease_s: LeaseS | None = None
    progress: Progress | None = None


class ExtendRequest(Request):
    items: Batch[ExtendItem]


class ReviveItem(Request):
    id: OpaqueId
    inputs: Json = None


class ReviveRequest(Request):
    items: Batch[ReviveItem]


class CancelRequest(Request):
    ids: Batch[OpaqueId]


class ItemStates(Request):
    ids: Batch[OpaqueId]


class TopicRequest(Request):
    topic: Topic


class MinShare(Request):
    """Of all that the topic hands out, at least so much goes to priorities from this one up to the next listed."""

    priority: Priority
    share: Annotated[float, Field(gt=0, le=SHARES_SUM_MAX)]


class TopicSettings(Request):
    """All settings of a topic; what is left out is off."""

    topic: Topic
    min_share: Annotated[list[MinShare], Field(max_length=SHARES_MAX)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        priorities = [entry.priority for entry in self.min_share]
        if priorities != sorted(set(priorities)):
            raise fault("/min_share", "priorities must ascend, each once")
        if sum(entry.share for entry in self.min_share) > SHARES_SUM_MAX + 1e-9:
            raise fault(
                "/min_share", f"shares must add up to at most {SHARES_SUM_MAX}: the best priorities need one"
            )
        return self


class NamespaceSpec(Request):
    enqueues_per_minute: Quota | None = None
    in_flight_max: Quota | None = None
    items_max: Quota | None = None
    stored_bytes_max: ByteQuota | None = None


# Responses


class ElementResult(Response):
    """One element's answer; `code` and `outcome` say why it was refused."""

    id: str | None
    code: str | None = None
    outcome: Outcome | None = None


class EnqueueResult(ElementResult):
    status: EnqueueStatus


class AckResult(ElementResult):
    status: AckStatus


class NackResult(ElementResult):
    status: NackStatus


class ExtendResult(ElementResult):
    status: ExtendStatus


class ReviveResult(ElementResult):
    status: ReviveStatus


class CancelResult(ElementResult):
    status: CancelStatus


class Results(Response, Generic[T]):
    """One result per element of the call, in its order."""

    results: list[T]


class Leased(Response):
    id: str
    topic: str
    payload: Any = None
    metadata: dict[str, Any] | None = None
    inputs: Any = None
    priority: int = 0
    attempt: int
    lease_token: str
    lease_expires_at: datetime
    enqueued_at: datetime
    headers: dict[str, str] | None = None
    dag: LeasedDag | None = None


class SettleResults(Response):
    """What became of each element that a dequeue settled, in order."""

    acks: list[AckResult] = Field(default_factory=list)
    nacks: list[NackResult] = Field(default_factory=list)


class DequeueReply(Response):
    """`results` is there where the call had a `settle`."""

    items: list[Leased]
    results: SettleResults | None = None


class ItemView(Response):
    """An item that has not been acked, and where it stands."""

    id: str
    namespace: str
    topic: str
    state: ItemState
    payload: Any = None
    metadata: dict[str, Any] | None = None
    inputs: Any = None
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    delivery: Delivery = "at_least_once"
    lease_s: float = float(LEASE_S_DEFAULT)
    enqueued_at: datetime
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    lease_expires_at: datetime | None = None
    progress: ProgressView | None = None
    error: str | None = None
    ack_topic: str | None = None
    ack_context: dict[str, Any] | None = None
    fairness_key: str | None = None
    headers: dict[str, str] | None = None
    dag: LeasedDag | None = None


class ItemStanding(ElementResult):
    """Where an item stands now. `since` is when it became ready, disabled or dead; `deliver_at` when it is due.

    Of a leased one `worker` is what the dequeue said; of one that waits `unasked_s` is for how long nobody has
    asked for its topic, as far as the process knows that answers.
    """

    status: LookStatus
    topic: str | None = None
    state: ItemState | None = None
    attempt: int = 0
    max_attempts: int = 0
    since: datetime | None = None
    deliver_at: datetime | None = None
    lease_expires_at: datetime | None = None
    error: str | None = None
    worker: str | None = None
    progress: ProgressView | None = None
    unasked_s: float | None = None


class ItemAttempt(Response):
    """A delivery that failed: nacked, not acked before its lease ran out (`timed_out`: by its `timeout_s`), or
    the last one of an item."""

    attempt: int
    started_at: datetime | None = None
    ended_at: datetime
    outcome: Literal["failed", "lease_expired", "timed_out", "dead"]
    error: str | None = None
    worker: str | None = None


class ItemAttempts(ElementResult):
    """Of one item of many the last deliveries that failed, in the order of their ends."""

    status: LookStatus
    attempts: list[ItemAttempt] = Field(default_factory=list)


class Completion(Response):
    """The payload of a completion item: how an item with an `ack_topic` ended."""

    id: str
    topic: str
    outcome: ItemOutcome
    attempt: int
    output: Any = None
    error: str | None = None
    finished_at: datetime
    ack_context: dict[str, Any] | None = None


class Namespace(Response):
    namespace: str
    enqueues_per_minute: int | None = None
    in_flight_max: int | None = None
    items_max: int | None = None
    stored_bytes_max: int | None = None
    enqueued_last_minute: int | None = None
    in_flight: int = 0
    items: int = 0
    stored_bytes: int = 0
    away: list[int] = Field(
        default_factory=list, description="shards that did not answer: what is there is not counted"
    )


class MinShareView(Response):
    priority: int
    share: float


class TopicSettingsView(Response):
    topic: str
    min_share: list[MinShareView] = Field(default_factory=list)


class TopicStats(Response):
    topic: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    disabled: int = 0
    dead: int = 0
    oldest_ready_age_s: float | None = None
    paused: bool = False
    min_share: list[MinShareView] | None = None


class TopicChange(Response):
    """What pause, resume, purge or redrive did; `items` counts those purged or put back so far."""

    topic: str
    paused: bool = False
    items: int = 0
    operation: OperationRef | None = None


class ShardHealth(Response):
    shard: int
    state: ShardState
    owner: str | None = None
    epoch: int = 0
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    disabled: int = 0
    dead: int = 0
    oldest_ready_age_s: float | None = None
    enqueued_per_s: float = 0.0
    dequeued_per_s: float = 0.0
    acked_per_s: float = 0.0
    errors_per_s: float = 0.0
    db_latency_ms_p50: float | None = None
    db_latency_ms_p99: float | None = None
    dead_tuples: int = 0
    oldest_transaction_age_s: float | None = None
    bytes: int = 0
