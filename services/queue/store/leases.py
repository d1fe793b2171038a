"""Statements about leases: who holds what, until when. A group is the items of a topic that one call leased."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from services.queue.model import EARLIEST, NamespaceId, TopicId
from services.queue.store.names import SQL
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked, rows_of


class Told(NamedTuple):
    """How far a holder says to have come, as JSON text, and when it said so (None: now)."""

    progress: str
    at: datetime | None


class Holding(NamedTuple):
    """Since when an item is leased, and to whom, if the call said so; a claim past its TTL is shown to nobody."""

    claimed_at: datetime
    worker: str | None
    was_shown: bool = True
    told: Told | None = None


class LeaseRow(NamedTuple):
    """A lease group, as `lock_leases` has it."""

    token: str
    namespace_id: NamespaceId
    topic_id: TopicId
    expires_at: datetime
    claimed_at: datetime
    worker: str | None
    progress: str | None
    progress_at: datetime | None
    ids: list[str]

    @property
    def holding(self) -> Holding:
        """Of its items."""
        told = None if self.progress is None else Told(self.progress, self.progress_at)
        return Holding(self.claimed_at, self.worker, told=told)


class ExpiredGroup(NamedTuple):
    """A group that ran out, or the part of it that was taken: `ids` of items that have not ended, and how many ids
    the group gave."""

    token: str
    namespace_id: NamespaceId
    topic_id: TopicId
    claimed_at: datetime
    worker: str | None
    ids: list[str]
    ids_taken: int
    was_shown: bool

    @property
    def holding(self) -> Holding:
        """Of its items."""
        return Holding(self.claimed_at, self.worker, self.was_shown)


class ItemLease(NamedTuple):
    """The lease that holds an item."""

    id: str
    expires_at: datetime
    claimed_at: datetime
    worker: str | None
    progress: str | None
    progress_at: datetime | None

    @property
    def progress_view(self) -> dict[str, Any] | None:
        """How far its holder says to have come, and when it said so."""
        return None if self.progress is None else {**json.loads(self.progress), "at": self.progress_at}


async def lock_groups(tx: Transaction, tokens: Sequence[str]) -> dict[str, list[LeaseRow]]:
    """Lock the lease groups of tokens."""
    groups: dict[str, list[LeaseRow]] = {}
    for group in await rows_of(LeaseRow, tx, SQL.lock_leases, tokens=sorted(set(tokens))):
        groups.setdefault(group.token, []).append(group)
    return groups


class LeasedGroup(NamedTuple):
    """What is leased under a token, and until when."""

    token: str
    expires_at: datetime
    ids: list[str]


async def leased_under(asked: Asked, tokens: Sequence[str]) -> list[LeasedGroup]:
    """The groups of these tokens, without waiting for anybody."""
    return await rows_of(LeasedGroup, asked, SQL.leased_under, tokens=list(tokens))


async def held_under(asked: Asked, pairs: Sequence[tuple[str, str]]) -> list[int]:
    """The places of those of these (token, id) pairs that a group names now, without waiting for anybody."""
    tokens, ids = zip(*pairs, strict=True)
    return [row["place"] - 1 for row in await asked.fetch(SQL.held_under, tokens=tokens, ids=ids)]


async def leave_groups(tx: Transaction, pairs: Sequence[tuple[str, str]]) -> None:
    """Take (token, id) pairs out of groups that the transaction has locked."""
    await tx.fetch(SQL.leave_leases, tokens=[token for token, _ in pairs], ids=[item for _, item in pairs])


async def lease_again(tx: Transaction, rows: Sequence[tuple[str, float, int, int, str, Holding]]) -> None:
    """New groups for (token, lease_s, namespace_id, topic_id, id, holding), ending from now."""
    tokens, lease_ss, namespace_ids, topic_ids, ids, holdings = zip(*rows, strict=True)
    await tx.fetch(
        SQL.lease_again,
        tokens=tokens,
        lease_ss=lease_ss,
        namespace_ids=namespace_ids,
        topic_ids=topic_ids,
        ids=ids,
        claimed_ats=[holding.claimed_at for holding in holdings],
        workers=[holding.worker for holding in holdings],
        progresses=[holding.told and holding.told.progress for holding in holdings],
        progress_ats=[holding.told and holding.told.at for holding in holdings],
    )


class SweepBounds(NamedTuple):
    """What one sweep takes of leases that ran out, and for how long it remembers acks; see `take_expired`."""

    items_max: int
    ids_max: int = 10_000
    groups_max: int = 200
    look_max: int = 1_000
    expired_from: datetime = EARLIEST
    after_namespace_id: int = 0
    window_ms: int = 0


async def take_expired(tx: Transaction, bounds: SweepBounds) -> list[ExpiredGroup]:
    """Take groups that ran out, or a part of one."""
    return await rows_of(ExpiredGroup, tx, SQL.take_expired, **bounds._asdict())


async def remember_acked(tx: Transaction, ids: Sequence[str], namespace_ids: Sequence[NamespaceId]) -> None:
    """These have ended while `take_expired` took their groups."""
    await tx.fetch(SQL.remember_acked, ids=list(ids), namespace_ids=list(namespace_ids))


async def leases_of(asked: Asked, ids: Sequence[str]) -> dict[str, ItemLease]:
    """The leases that hold these items."""
    if not ids:
        return {}
    return {lease.id: lease for lease in await rows_of(ItemLease, asked, SQL.leases_of, ids=list(ids))}
