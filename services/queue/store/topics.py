"""Statements about namespaces and topics: what is set for them, what they hold, lanes, the end of empty ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from services.queue.model import NamespaceId, Ready, TopicId
from services.queue.store.items import MadeReady
from services.queue.store.names import SQL
from shared.ids import ShardNo
from shared.postgres.rows import Asked, only_row_of, rows_of

# -- what is there ----------------------------------------------------------------------------------------------


class NamespaceRow(NamedTuple):
    """A namespace that a shard knows; `settings` as JSON, and since when (None: never set)."""

    namespace_id: NamespaceId
    name: str
    settings: str
    set_at: datetime | None


class TopicCounts(NamedTuple):
    """A topic of a namespace with what it holds; `last_name` is where the look ended (None: at the end)."""

    last_name: str | None
    topic_id: TopicId | None
    name: str | None
    paused: bool
    ready: int
    delayed: int
    leased: int
    disabled: int
    dead: int


class Counts(NamedTuple):
    """What a topic holds by state; `topic_id` None: all others together."""

    topic_id: TopicId | None
    ready: int
    delayed: int
    leased: int
    disabled: int
    dead: int
    paused: bool

    @property
    def work(self) -> int:
        """What workers can be busy with now."""
        return self.leased if self.paused else self.ready + self.leased


class ShardCounts(NamedTuple):
    """What a shard holds by state."""

    ready: int
    delayed: int
    leased: int
    disabled: int
    dead: int


class ServerHealth(NamedTuple):
    """How a shard's tables and its server are."""

    dead_tuples: int
    oldest_transaction_age_s: float


class NamespaceUse(NamedTuple):
    """What a namespace holds on a shard."""

    namespace_id: NamespaceId
    leased: int
    items: int
    bytes: int


async def namespace_names(asked: Asked, after: str, limit: int) -> list[str]:
    """A page of names, but the system's."""
    return [row[0] for row in await asked.fetch(SQL.namespace_names, after=after, limit=limit)]


async def namespaces(asked: Asked, names: Sequence[str]) -> list[NamespaceRow]:
    """Those of these that the shard knows."""
    return await rows_of(NamespaceRow, asked, SQL.namespaces, names=names)


async def usage(asked: Asked, namespace_ids: Sequence[NamespaceId]) -> list[NamespaceUse]:
    """What namespaces hold; those that hold nothing may be missing."""
    return await rows_of(NamespaceUse, asked, SQL.usage, namespace_ids=sorted(namespace_ids))


async def topics_page(
    asked: Asked, namespace: str, after: str, limit: int, scan_max: int
) -> tuple[list[TopicCounts], str | None]:
    """Topics behind a name that hold items or are paused, and to which name that is all (None: to the end)."""
    values = {"namespace": namespace, "after": after, "limit": limit, "scan_max": scan_max}
    found = await rows_of(TopicCounts, asked, SQL.topics_page, **values)
    topics = [topic for topic in found if topic.name is not None]
    return topics, topics[-1].name if len(topics) == limit else found[0].last_name


async def most_counts(asked: Asked, limit: int) -> list[Counts]:
    """What the topics hold that hold most, and all others together."""
    return await rows_of(Counts, asked, SQL.most_counts, limit=limit)


async def shard_counts(asked: Asked) -> ShardCounts:
    """What the shard holds in all."""
    return await only_row_of(ShardCounts, asked, SQL.shard_counts)


async def ready_topics(asked: Asked, after: TopicId, limit: int) -> list[TopicId]:
    """The topics behind a number that have something ready, by their numbers."""
    return [row[0] for row in await asked.fetch(SQL.ready_topics, after=after, limit=limit)]


async def server_health(asked: Asked) -> ServerHealth:
    """How the shard's tables and its server are."""
    return await only_row_of(ServerHealth, asked, SQL.server_health)


async def shard_bytes(asked: Asked) -> int:
    """What the shard's tables take on its server's disk."""
    [row] = await asked.fetch(SQL.shard_bytes)
    return int(row[0])


async def fold_counts(asked: Asked, limit: int) -> int:
    """Fold appended counts into the totals; how many."""
    [row] = await asked.fetch(SQL.fold_counts, limit=limit)
    return int(row[0])


# -- what is set ------------------------------------------------------------------------------------------------


class Noticed(NamedTuple):
    """Whether a shard has anything of a kind."""

    quotas: bool
    shares: bool
    lanes: bool
    cancels: bool
    limits: bool


class Limited(NamedTuple):
    """A namespace that has quotas."""

    name: str
    settings: str
    set_at: datetime


class MinShare(NamedTuple):
    """A topic that has minimum shares, as JSON."""

    topic_id: TopicId
    min_share: str
    min_share_at: datetime


class GivenSettings(NamedTuple):
    """What is set for a namespace."""

    number: ShardNo
    namespace: str
    settings: str
    set_at: datetime


class GivenToTopic(NamedTuple):
    """What is set for a topic, each since when (None: never)."""

    number: ShardNo
    namespace: str
    topic: str
    paused: bool
    paused_at: datetime | None
    min_share: str
    min_share_at: datetime | None
    limits: str
    limits_at: datetime | None


async def notices(asked: Asked) -> Noticed:
    """Whether the shard has quotas, minimum shares, lanes or limits."""
    return await only_row_of(Noticed, asked, SQL.notices)


async def limited(asked: Asked) -> list[Limited]:
    """The namespaces that have quotas."""
    return await rows_of(Limited, asked, SQL.limited)


async def min_shares(asked: Asked) -> list[MinShare]:
    """The topics that have minimum shares."""
    return await rows_of(MinShare, asked, SQL.min_shares)


async def time_to_give(asked: Asked, namespace: str, topic: str) -> datetime:
    """A time later than those of what is set here under these names."""
    [row] = await asked.fetch(SQL.time_to_give, namespace=namespace, topic=topic)
    at: datetime = row[0]
    return at


async def given_settings(asked: Asked, after: int, limit: int) -> list[GivenSettings]:
    """A page of what is set for namespaces."""
    return await rows_of(GivenSettings, asked, SQL.given_settings, after=after, limit=limit)


async def given_to_topics(asked: Asked, after: int, limit: int) -> list[GivenToTopic]:
    """A page of what is set for topics."""
    return await rows_of(GivenToTopic, asked, SQL.given_to_topics, after=after, limit=limit)


async def give_settings(
    asked: Asked, namespaces: Sequence[str], settings: Sequence[str], set_ats: Sequence[datetime]
) -> None:
    """Settings of namespaces, where nothing newer stands."""
    await asked.fetch(SQL.give_settings, namespaces=namespaces, settings=settings, set_ats=set_ats)


async def give_pauses(
    asked: Asked,
    namespaces: Sequence[str],
    topics: Sequence[str],
    paused: Sequence[bool],
    set_ats: Sequence[datetime],
) -> None:
    """Whether topics are paused, where nothing newer stands."""
    await asked.fetch(SQL.give_pauses, namespaces=namespaces, topics=topics, paused=paused, set_ats=set_ats)


async def give_shares(
    asked: Asked,
    namespaces: Sequence[str],
    topics: Sequence[str],
    min_shares: Sequence[str],
    set_ats: Sequence[datetime],
) -> None:
    """Minimum shares of topics, where nothing newer stands."""
    await asked.fetch(
        SQL.give_shares, namespaces=namespaces, topics=topics, min_shares=min_shares, set_ats=set_ats
    )


async def give_limits(
    asked: Asked,
    namespaces: Sequence[str],
    topics: Sequence[str],
    limits: Sequence[str],
    set_ats: Sequence[datetime],
) -> None:
    """Limits of topics, where nothing newer stands."""
    await asked.fetch(SQL.give_limits, namespaces=namespaces, topics=topics, limits=limits, set_ats=set_ats)


# -- lanes ------------------------------------------------------------------------------------------------------


class LaneHead(NamedTuple):
    """How far a topic's priority with lanes is served; None: nothing of it is ready."""

    topic_id: TopicId
    priority: int
    head: datetime | None


async def lane_heads(asked: Asked) -> list[LaneHead]:
    """How far each topic and priority with lanes is served."""
    return await rows_of(LaneHead, asked, SQL.lane_heads)


async def set_lane_clock(
    asked: Asked, topic_id: TopicId, priority: int, v_at: datetime, *, is_shared: bool
) -> bool:
    """From where places are counted; False: the topic is gone."""
    [row] = await asked.fetch(
        SQL.set_lane_clock, topic_id=topic_id, priority=priority, v_at=v_at, is_shared=is_shared
    )
    return bool(row[0])


async def drop_lanes(asked: Asked, topic_id: TopicId, priority: int, v_at: datetime, limit: int) -> None:
    """Lanes that have nothing waiting go."""
    await asked.fetch(SQL.drop_lanes, topic_id=topic_id, priority=priority, v_at=v_at, limit=limit)


async def drop_lane_clock(asked: Asked, topic_id: TopicId, priority: int) -> None:
    """Nothing counts places any more, if no lane is left."""
    await asked.fetch(SQL.drop_lane_clock, topic_id=topic_id, priority=priority)


async def adopt_strays(asked: Asked, topic_id: TopicId, priority: int, v_at: datetime, limit: int) -> list[Ready]:
    """Ready items without a lane that stand behind all places become one; where they are now."""
    adopted = await rows_of(
        MadeReady, asked, SQL.adopt_strays, topic_id=topic_id, priority=priority, v_at=v_at, limit=limit
    )
    return [item.ready for item in adopted]


# -- the end of empty topics ------------------------------------------------------------------------------------


class Retired(NamedTuple):
    """How many topics were looked at, how many of them marked, and where to go on (None: at the end)."""

    looked: int
    marked: int
    last_topic_id: TopicId | None


class MarkedTopic(NamedTuple):
    """A topic that is to be deleted."""

    topic_id: TopicId
    mark: str


async def retire_topics(asked: Asked, after_topic_id: int, age_s: float, limit: int) -> Retired:
    """Mark, of the next topics, those that have held nothing for long."""
    values = {"after_topic_id": after_topic_id, "age_s": age_s, "limit": limit}
    return await only_row_of(Retired, asked, SQL.retire_topics, **values)


async def retiring_topics(asked: Asked, limit: int) -> list[MarkedTopic]:
    """Those that are marked."""
    return await rows_of(MarkedTopic, asked, SQL.retiring_topics, limit=limit)


async def running_transactions(asked: Asked) -> frozenset[str]:
    """Those of the database."""
    return frozenset(row[0] for row in await asked.fetch(SQL.running_transactions))


async def delete_topics(asked: Asked, topic_ids: Sequence[TopicId], marks: Sequence[str]) -> list[TopicId]:
    """Delete topics that still have these marks and are free; which that were."""
    return [row[0] for row in await asked.fetch(SQL.delete_topics, topic_ids=topic_ids, marks=marks)]
