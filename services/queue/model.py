"""Items, leases and keys as the service moves them. Hot values are msgspec structs: one object an item."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

NULL = msgspec.Raw(b"null")


class NewItem(msgspec.Struct, forbid_unknown_fields=True):
    """One element of an enqueue call, in wire names; validated before it gets here."""

    topic: str
    id: str | None = None
    payload: msgspec.Raw = NULL
    metadata: msgspec.Raw = NULL
    inputs: msgspec.Raw = NULL
    headers: msgspec.Raw = NULL
    priority: int = 0
    deliver_after: datetime | None = None
    delay_s: float | None = None
    lease_s: float | None = None
    ttl_s: float | None = None
    disabled: bool = False
    delivery: str = "at_least_once"
    max_attempts: int = 0
    backoff: Any = None
    idempotency_key: str | None = None
    ack_topic: str | None = None
    ack_context: msgspec.Raw = NULL
    affinity: str | None = None


class NewItems(msgspec.Struct, forbid_unknown_fields=True):
    """An enqueue call."""

    items: list[NewItem]


class Settled(msgspec.Struct, forbid_unknown_fields=True):
    """One element of an ack call."""

    id: str
    lease_token: str
    output: msgspec.Raw = msgspec.Raw(b"")


class Acks(msgspec.Struct, forbid_unknown_fields=True):
    """An ack call."""

    items: list[Settled]


class Demand(msgspec.Struct, forbid_unknown_fields=True):
    """How many items of one topic a consumer takes."""

    topic: str
    count: int = 1


class Demands(msgspec.Struct, forbid_unknown_fields=True):
    """A dequeue call."""

    topics: list[Demand]
    wait_s: float = 0
    lease_s: float | None = None
    worker: str | None = None


class NewRow(NamedTuple):
    """One row of an enqueue flush, in the order of the statement's parameters."""

    id: str
    time_ms: int | None
    namespace_id: int
    topic_id: int
    priority: int
    payload: str
    metadata: str | None
    inputs: str | None
    headers: str | None
    due_at: datetime | None
    delay_s: float | None
    lease_s: float
    ttl_s: float | None
    disabled: bool
    at_most_once: bool
    max_attempts: int
    backoff: str | None
    ack_topic_id: int | None
    ack_context: str | None
    key: str | None
    managed: bool
    remembered: bool


class Key(NamedTuple):
    """The place of a ready item in its topic: the order in which items are served."""

    priority: int
    deliver_at: datetime
    id: str


class Ready(NamedTuple):
    """An item that has just become deliverable."""

    topic_id: int
    key: Key


class Claim(NamedTuple):
    """One key that a consumer wants, under its call's token."""

    topic_id: int
    key: Key
    token: str
    lease_s: float | None


class Result(msgspec.Struct, omit_defaults=True):
    """What became of one element of a batch."""

    id: str
    status: str
    code: str | None = None
    outcome: str | None = None


def refused(item_id: str, code: str, outcome: str = "none") -> Result:
    """An element that could not be taken."""
    return Result(item_id, "refused", code, outcome)


def backoff_s(attempts: int, steps: list[float] | None) -> float:
    """The pause before the next delivery after `attempts` that failed: base x factor^(attempts-1), capped."""
    if not steps or attempts < 1:
        return 0.0
    base_s, factor, max_s = steps
    try:
        pause_s = base_s * factor ** (attempts - 1)
    except OverflowError:
        return max_s
    return min(pause_s, max_s)
