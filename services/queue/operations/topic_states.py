"""Topics and namespaces as callers see them, summed over all shards; encoded as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shared.ids import ShardNo


class Share(msgspec.Struct, frozen=True):
    """What part of a topic's deliveries a priority gets at least."""

    priority: int
    share: float


class TopicStats(msgspec.Struct, frozen=True):
    """What a topic holds by state; `min_share` None: it has none."""

    topic: str
    ready: int
    delayed: int
    leased: int
    disabled: int
    dead: int
    oldest_ready_age_s: float | None
    paused: bool
    min_share: list[Share] | None


class NamespaceState(msgspec.Struct, frozen=True):
    """A namespace's quotas (None: no limit) and what it uses; `enqueued_last_minute` None: nobody counts."""

    namespace: str
    enqueues_per_minute: int | None
    in_flight_max: int | None
    items_max: int | None
    stored_bytes_max: int | None
    enqueued_last_minute: int | None
    in_flight: int
    items: int
    stored_bytes: int
    # Shards that did not answer, where there are any: what is there is not counted.
    away: Sequence[ShardNo] | msgspec.UnsetType = msgspec.UNSET


class ThrottledKey(msgspec.Struct, frozen=True):
    """A fairness key of which nothing is handed out until then."""

    key: str
    until: datetime


class LimitsState(msgspec.Struct, frozen=True):
    """What limits a topic, how much of it is leased, and what is throttled."""

    topic: str
    rate: float | None
    burst: int
    concurrency: int | None
    key_rate: float | None
    key_burst: int
    key_concurrency: int | None
    in_flight: int
    throttled_until: datetime | None
    throttled_keys: list[ThrottledKey]

    @property
    def holds_back(self) -> bool:
        """Whether anything is limited or throttled now."""
        set_now = (self.rate, self.concurrency, self.key_rate, self.key_concurrency, self.throttled_until)
        return bool(self.throttled_keys) or any(value is not None for value in set_now)


class OperationRef(msgspec.Struct, frozen=True):
    """The operation that carries a purge or redrive out."""

    id: str
    state: str


class TopicChange(msgspec.Struct, frozen=True):
    """What pause, resume, purge or redrive did; `items` are those changed so far."""

    topic: str
    paused: bool
    items: int
    operation: OperationRef | msgspec.UnsetType = msgspec.UNSET
