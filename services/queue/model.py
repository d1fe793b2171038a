"""Items, leases and keys as the service moves them. Hot values are msgspec structs: one object an item."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntFlag
from operator import itemgetter
from typing import Annotated, NamedTuple, NewType, TypeAlias

import msgspec
from msgspec.structs import astuple

from shared.errors import ServiceError

NULL = msgspec.Raw(b"null")
# Stands nowhere in JSON text: within strings it must be escaped, between values it is no white space.
SEPARATOR = "\x1e"

LEASE_S = 60.0
LEASE_S_MAX = 43_200.0
NO_OUTPUT = msgspec.Raw(b"")


# Numbers that one shard gave to names: they mean nothing on another.
NamespaceId = NewType("NamespaceId", int)
TopicId = NewType("TopicId", int)


class Fold(IntFlag):
    """What an ack may apply to DAGs in its own transaction: ends of nodes, ends of DAGs. Of ends that release many
    nodes: they are taken too (`WIDE`), or refuse their flush; else they are told like all that is not applied.
    `AWAIT`: a DAG that is locked is waited for, a little."""

    NOTHING = 0
    NODES = 1
    DAGS = 2
    WIDE = 4
    REFUSE_WIDE = 8
    AWAIT = 16


class Backoff(msgspec.Struct, forbid_unknown_fields=True):
    """How long redelivery waits, with the defaults of `wire.Backoff`; judged by it before it gets here."""

    base_s: float = 1.0
    factor: float = 2.0
    max_s: float = 300.0
    jitter: float = 0.2


BACKOFF = Backoff()


class NewItem(msgspec.Struct, forbid_unknown_fields=True):
    """One element of an enqueue call, in wire names; validated before it gets here."""

    topic: str
    id: str | None = None
    payload: msgspec.Raw = NULL
    priority: int = 0
    lease_s: float = LEASE_S
    max_attempts: int = 0
    disabled: bool = False
    ack_topic: str | None = None
    ack_context: msgspec.Raw = NULL
    # Those above make simple items.
    metadata: msgspec.Raw = NULL
    inputs: msgspec.Raw = NULL
    headers: msgspec.Raw = NULL
    deliver_after: datetime | None = None
    delay_s: float | None = None
    ttl_s: float | None = None
    delivery: str = "at_least_once"
    backoff: Backoff | None = None
    idempotency_key: str | None = None
    unique: bool = False
    affinity: str | None = None
    fairness_key: str | None = None
    timeout_s: float | None = None
    deadline_s: float | None = None


_SIMPLE_FIELDS = NewItem.__struct_fields__.index("metadata")
_NOT_GIVEN = astuple(NewItem("t"))[_SIMPLE_FIELDS:]


def is_simple(item: NewItem) -> bool:
    """True for an item that uses only topic, id, payload, priority, lease_s, max_attempts, disabled, ack_topic and
    ack_context: what a DAG's items are made of."""
    return astuple(item)[_SIMPLE_FIELDS:] == _NOT_GIVEN


class NewItems(msgspec.Struct, forbid_unknown_fields=True):
    """An enqueue call."""

    items: list[NewItem]


class PlainItem(msgspec.Struct, forbid_unknown_fields=True):
    """One element of an enqueue call that uses only the common fields. Of a call all have ids by their caller,
    canonical ones of one shard, or none has."""

    topic: str
    payload: msgspec.Raw = NULL
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=LEASE_S_MAX)] = LEASE_S
    id: str | None = None


class PlainItems(msgspec.Struct, forbid_unknown_fields=True):
    """An enqueue call of plain items."""

    items: list[PlainItem]


class PlainPart(NamedTuple):
    """Plain items of a call that are equal but for their payloads: these, joined by U+001E, and their places."""

    topic: str
    priority: int
    lease_s: float
    payloads: str
    places: Sequence[int]


class PlainCall(NamedTuple):
    """A call of plain items, by their kinds; the ids that its caller gave them, in the call's order, if it did."""

    parts: Sequence[PlainPart]
    ids: Sequence[str] | None = None


# Namespace, topic, priority and lease_s of a plain item.
Kind: TypeAlias = tuple[str, str, int, float]


class Settled(msgspec.Struct, forbid_unknown_fields=True):
    """One element of an ack call."""

    id: str
    lease_token: str
    output: msgspec.Raw = NO_OUTPUT


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """An ack call."""

    items: list[Settled]


class PlainAcks(NamedTuple):
    """An ack call of canonical ids under one canonical token, without outputs."""

    ids: list[str]
    token: str


class Demand(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How many items of one topic a consumer takes."""

    topic: str
    count: int = 1


class Returned(msgspec.Struct, forbid_unknown_fields=True):
    """One element of a nack call, in wire names."""

    id: str
    lease_token: str
    delay_s: float | None = None
    metadata: msgspec.Raw = NULL
    error: str | None = None
    final: bool = False
    costs_attempt: bool = True
    throttle_s: float | None = None
    throttle_key: str | None = None


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    """What a dequeue call settles first."""

    acks: list[Settled] | None = None
    nacks: list[Returned] | None = None


class Demands(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A dequeue call."""

    topics: list[Demand]
    wait_s: float = 0
    lease_s: float | None = None
    worker: str | None = None
    settle: Settle | None = None


class RareKind(NamedTuple):
    """What an item of an enqueue flush has in common with others."""

    topic: tuple[str, str]  # with its namespace
    ack_topic: tuple[str, str] | None
    priority: int
    lease_s: float
    named: bool  # by its caller
    extra: str | None  # a JSON object of the rarer columns
    as_of: datetime | None = (
        None  # for all items of a call that goes to several shards: where they stand in the order
    )


class NewRow(NamedTuple):
    """One item of an enqueue flush."""

    id: str
    kind: RareKind
    time_ms: int  # asked of named ones
    payload: str
    ack_context: str | None
    waits: bool  # disabled or delayed: nobody is to be woken for it


EARLIEST = datetime(1, 1, 1, tzinfo=UTC)

# The place of a key, whether there is one or not.
Bound: TypeAlias = tuple[int, datetime, str]


class KeyLook(NamedTuple):
    """A topic, its number on a shard, behind what to look, and from where for keys of that one's priority."""

    namespace: str
    topic: str
    topic_id: TopicId
    after: Bound
    start: Bound


class Key(NamedTuple):
    """The place of a ready item in its topic: the order in which items are served."""

    priority: int
    deliver_at: datetime
    id: str


# The id of a key, for `map`: no step of Python for each of many.
id_of = itemgetter(Key._fields.index("id"))


class Ready(NamedTuple):
    """An item that has just become deliverable."""

    topic_id: TopicId
    key: Key


class Claim(msgspec.Struct):
    """Keys of one topic and shard that a call wants, in its order of service, under its token: as many as have no
    more than `bytes_max` bytes together, and the item `first_id` at any size."""

    topic_id: TopicId
    keys: Sequence[Key]
    token: str
    lease_s: float | None
    worker: str | None = None
    bytes_max: int = 16 * 1024 * 1024
    first_id: str | None = None

    def stretches(self) -> list[tuple[Key, Key]]:
        """First and last of the parts that ascend within one priority: few other ready items lie between them."""
        keys = self.keys
        if len(keys) == 1:
            return [(keys[0], keys[0])]
        if keys[0].priority == keys[-1].priority and list(keys) == sorted(keys):
            return [(keys[0], keys[-1])]
        found: list[tuple[Key, Key]] = []
        first = last = keys[0]
        for key in keys[1:]:
            if key.priority != last.priority or key < last:
                found.append((first, last))
                first = key
            last = key
        return [*found, (first, last)]


class Offer(NamedTuple):
    """What a waiting call would take of a topic: up to `items_max`, for `lease_s` (0: each item's own); and who
    makes it, if it says so."""

    topic_id: TopicId
    token: str
    lease_s: float
    items_max: int
    worker: str | None = None


class Result(msgspec.Struct, omit_defaults=True):
    """What became of one element of a batch."""

    id: str | None
    status: str
    code: str | None = None
    outcome: str | None = None


class Even(NamedTuple):
    """Results of one status for all elements of a batch, whose ids need no escapes in JSON."""

    ids: Sequence[str]
    status: str

    def raw(self) -> msgspec.Raw:
        """Their JSON, made as a whole."""
        end = f'","status":"{self.status}"}}'
        between = f'{end},{{"id":"'
        return msgspec.Raw(f'[{{"id":"{between.join(self.ids)}{end}]'.encode())

    def each(self) -> list[Result]:
        """One by one."""
        return [Result(item_id, self.status) for item_id in self.ids]


def refused(item_id: str | None, code: str, outcome: str = "none") -> Result:
    """An element that could not be taken."""
    return Result(item_id, "refused", code, outcome)


def settled(item_id: str | None, status: str | ServiceError) -> Result:
    """An element of which that is known, or only why not."""
    return Result(item_id, status) if isinstance(status, str) else refused(item_id, status.code, status.outcome)


def backoff_s(attempts: int, steps: Sequence[float] | None, at: float) -> float:
    """The pause before the next delivery after `attempts` that failed: base x factor^(attempts-1), capped.

    Items that failed together do not come back together: a pause is spread over `jitter` times itself, never past
    the cap. `at` is the place in that, from 0 to 1.
    """
    base_s, factor, max_s, jitter = steps or astuple(BACKOFF)
    try:
        pause_s = min(base_s * factor ** (attempts - 1), max_s)
    except OverflowError:
        pause_s = max_s if base_s else 0.0
    spread_s = jitter * pause_s
    return max(0.0, min(pause_s, max_s - spread_s)) + at * spread_s
