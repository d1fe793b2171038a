"""What goes into and comes out of the queue's batches.

In: typed dictionaries, sent as they are; fields left out have the service's defaults. Out: small plain classes,
open to states and fields that came later. Reading one from JSON costs 2.6 us (a leased item) or 0.8 us (a result)
on a busy machine; pydantic's JSON parser would save nothing that is a reason to hand out models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, NotRequired, Required, TypedDict, TypeVar

from headgate.wire import Delivery, ItemState

T = TypeVar("T")


class Listing(list[T]):
    """The elements of a list over all shards, and the shards that did not answer: what is there is missing."""

    away: Sequence[int] = ()


class Part(NamedTuple, Generic[T]):
    """One page of a list, the cursor of the next page, and the shards that did not answer."""

    elements: list[T]
    cursor: str | None
    away: Sequence[int]


class BackoffSpec(TypedDict, total=False):
    """Redelivery waits `min(base_s * factor ** (attempt - 1), max_s)`, and up to `jitter` times that; by default
    1 s, 2, 300 s and 0.2."""

    base_s: float
    factor: float
    max_s: float
    jitter: float


class ItemOptions(TypedDict, total=False):
    """What an item may carry besides its topic and payload; all of it has a default.

    priority: lower is served first; 0 by default.
    delay_s or deliver_after: not before; up to 30 days ahead.
    ttl_s: dropped so long after the enqueue, unless somebody has it then.
    deadline_s: ended so long after the enqueue, also if somebody has it then.
    timeout_s: how long one delivery may last, however often its lease is extended; then it has failed.
    lease_s: how long a consumer that does not extend has for it; 60 by default, its dequeue may say otherwise.
    max_attempts: deliveries before it is dead; by default a worker's task says, which is 20, else there is no end.
    backoff: `{"base_s": 5}` waits 5, 10, 20, ... up to 300 seconds between them; by default from 1; 0 is at once.
    delivery: `at_least_once` by default, or `at_most_once`.
    id or idempotency_key: the same again adds nothing; an id is made where neither is given.
    unique: the idempotency key is free again as soon as its item has ended; one at a time is queued or running.
    fairness_key: items of one key take turns with those of others.
    affinity: items of one affinity share a shard.
    disabled: not delivered before it is revived.
    ack_topic, ack_context: where one completion item tells of its end, and what that carries along.
    metadata, headers, inputs: passed on; of up to 1 KiB, 1 KiB of text, 257 KiB.
    """

    id: str
    metadata: dict[str, Any]
    inputs: Any
    priority: int
    deliver_after: datetime | str
    delay_s: float
    lease_s: float
    ttl_s: float
    deadline_s: float
    timeout_s: float
    disabled: bool
    delivery: Delivery
    max_attempts: int
    backoff: BackoffSpec
    idempotency_key: str
    unique: bool
    ack_topic: str
    ack_context: dict[str, Any]
    affinity: str
    fairness_key: str
    headers: dict[str, str]


class Item(ItemOptions):
    """An item to enqueue."""

    topic: str
    payload: NotRequired[Any]


class Ack(TypedDict):
    id: str
    lease_token: str
    output: NotRequired[Any]


class Nack(TypedDict, total=False):
    id: Required[str]
    lease_token: Required[str]
    delay_s: float
    metadata: dict[str, Any]
    error: str
    final: bool
    costs_attempt: bool
    throttle_s: float
    throttle_key: str


class Told(TypedDict):
    """How far a job has come."""

    done: float
    total: NotRequired[float]
    note: NotRequired[str]


class Extend(TypedDict):
    id: str
    lease_token: str
    lease_s: NotRequired[float]
    progress: NotRequired[Told]


class Revive(TypedDict):
    id: str
    inputs: NotRequired[Any]


class ItemFilter(TypedDict, total=False):
    """Which items an operation is about; see `headgate.wire.OperationFilter`."""

    topic: str
    state: ItemState
    error: str
    priority_min: int
    priority_max: int
    enqueued_before: datetime | str
    enqueued_after: datetime | str
    metadata: dict[str, Any]


class Result(NamedTuple):
    """One element's answer. `code` and `outcome` say why a `refused` one was refused."""

    id: str | None
    status: str
    code: str | None = None
    outcome: str | None = None

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> "Result":
        get = answer.get
        # As `cls(...)`, at a third of its cost: a batch has a thousand.
        return tuple.__new__(cls, (get("id"), answer["status"], get("code"), get("outcome")))


class LeasedDag(NamedTuple):
    """Where in which DAG a leased item belongs."""

    id: str
    node: str
    generation: int


@dataclass(slots=True, kw_only=True)
class Leased:
    """An item in your hands until `lease_expires_at`: ack it, nack it, or extend the lease."""

    id: str
    topic: str
    lease_token: str
    lease_expires_at: datetime
    attempt: int
    payload: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    inputs: Any = None
    priority: int = 0
    enqueued_at: datetime | None = None
    headers: dict[str, str] = field(default_factory=dict)
    dag: LeasedDag | None = None

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> "Leased":
        get = answer.get
        dag, enqueued_at = get("dag"), get("enqueued_at")
        # As `cls(...)`, whose keywords and defaults take twice as long as all else.
        leased = object.__new__(cls)
        leased.id = answer["id"]
        leased.topic = answer["topic"]
        leased.lease_token = answer["lease_token"]
        leased.lease_expires_at = datetime.fromisoformat(answer["lease_expires_at"])
        leased.attempt = answer["attempt"]
        leased.payload = get("payload")
        leased.metadata = get("metadata") or {}
        leased.inputs = get("inputs")
        leased.priority = get("priority", 0)
        leased.enqueued_at = datetime.fromisoformat(enqueued_at) if enqueued_at else None
        leased.headers = get("headers") or {}
        leased.dag = LeasedDag(dag["id"], dag["node"], dag["generation"]) if dag else None
        return leased

    def ack(self, output: Any = None) -> Ack:
        """The element that acks this item."""
        if output is None:
            return {"id": self.id, "lease_token": self.lease_token}
        return {"id": self.id, "lease_token": self.lease_token, "output": output}


class Dequeued(NamedTuple):
    """What a dequeue that settles answers: items, and what became of each ack and nack."""

    items: list[Leased]
    acks: list[Result]
    nacks: list[Result]
