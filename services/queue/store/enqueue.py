"""What a shard is asked to take in. Items name their topics, whose numbers are looked at where they are used.

A number is remembered from before (`names`), and its topic may have been deleted since, or the shard's server may
tell another history by now. So a statement that writes under a number joins it with its names, and takes in
nothing where one of them does not fit; then the names are read, or made, anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar, cast

from asyncpg import Record

from services.queue.model import Kind, NewRow, Offer, RareKind, TopicId
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Handed
from services.queue.store.item_kinds import columns, pairs_of, plain_columns
from services.queue.store.items import lock_keys
from services.queue.store.names import SQL, Names, Pair, TopicRef
from services.queue.store.offers import handed_of, offered
from shared.errors import ShardUnavailable
from shared.postgres.connections import Declined, Transaction
from shared.shards.shard_map import Shard

T = TypeVar("T")

# Topics by number.
Refs: TypeAlias = Mapping[Pair, TopicRef]

# A topic is deleted only after it was empty for long: two such in a row are an accident, more are a fault.
NAMING_TRIES_MAX = 4
# How far before now an item may come to lie in the order. Scans of the living begin twice as far before what they
# found last (`keys.scan_floor`).
EARLY_S_MAX = 5.0


class Enqueued(NamedTuple):
    """One flush of enqueues: the shard's time, the ids taken in (None: all), the numbers of the topics, and what
    was leased at once."""

    at: datetime
    taken: list[str] | None
    refs: Refs
    handed: Sequence[Handed] = ()

    def since(self, kind: RareKind) -> datetime:
        """Where items of this kind that are ready stand in the order, as the statement has it."""
        if kind.as_of is None:
            return self.at
        return min(max(kind.as_of, self.at - timedelta(seconds=EARLY_S_MAX)), self.at)


class Holder(NamedTuple):
    """The item that holds an idempotency key, and the print of its content."""

    id: str
    fingerprint: bytes


class Strangers(Exception):
    """Numbers that do not stand for the names they were given with; nothing was taken in."""

    def __init__(self, topic_ids: Sequence[TopicId]) -> None:
        super().__init__(topic_ids)
        self.topic_ids = topic_ids


# What `refuse_known` says of ids that are to be looked at one by one.
NOT_NEW = "not new"


class NotNew(Exception):
    """Among ids by callers is one of an item that has ended, or out of its window; nothing was taken in."""


class EnqueueStore:
    """The statements of one shard by which items come in."""

    def __init__(self, shard: Shard, settings: QueueSettings) -> None:
        self.number = shard.number
        self.shard = shard
        self.pool = shard.pool
        self.names = Names(shard, settings.names_max)
        self._answer_bytes_max = settings.answer_bytes_max
        self.has_lanes = False  # whether this process has met a fairness key here
        # How old an id may be, and how far ahead.
        self._ages = {
            "window_ms": int(settings.id_window_s * 1000),
            "ahead_ms": int(settings.id_ahead_s_max * 1000),
        }

    async def time(self) -> datetime:
        """The shard's clock."""
        row = await self.pool.row(SQL.shard_time)
        return cast("datetime", row["at"])

    async def enqueue(self, rows: Sequence[NewRow], offers: Sequence[Offer] = ()) -> Enqueued:
        """Take items in; ids that exist, ended or are out of their window are left out of `taken`."""

        async def ask(refs: Refs) -> Enqueued:
            return _enqueued(await self.pool.row(SQL.enqueue, **self._arguments(rows, refs, offers)), refs)

        return await self._named(pairs_of(rows), ask)

    async def enqueue_plain(self, groups: Sequence[tuple[Kind, Sequence[str], str]]) -> Enqueued:
        """Take in plain items, whose ids were made here: (kind, ids, payloads joined)."""

        async def ask(refs: Refs) -> Enqueued:
            row = await self.pool.row(SQL.enqueue_plain, **plain_columns(groups, refs))
            return Enqueued(row["at"], None, refs)

        return await self._named([kind[:2] for kind, _, _ in groups], ask)

    async def enqueue_named(self, groups: Sequence[tuple[Kind, Sequence[str], str]]) -> Enqueued:
        """As `enqueue_plain`, of ids by callers.

        Raises:
            NotNew: one of the ids has ended, or is out of its window; nothing was taken in.
            Invalid: one of them exists, or a row is at fault; nothing was taken in.
        """

        async def ask(refs: Refs) -> Enqueued:
            given = plain_columns(groups, refs)
            bounds = {"first_id": min(given["ids"]), "last_id": max(given["ids"])}
            try:
                row = await self.pool.row(SQL.enqueue_named, **given, **bounds, **self._ages)
            except Declined as error:
                if error.detail == NOT_NEW:
                    raise NotNew from None
                raise
            return Enqueued(row["at"], None, refs)

        return await self._named([kind[:2] for kind, _, _ in groups], ask)

    async def enqueue_keyed(
        self,
        rows: Sequence[NewRow],
        keys: Sequence[str],
        fingerprints: Sequence[bytes],
        slots: Sequence[int],
        unique_keys: Sequence[str],
    ) -> tuple[Enqueued, list[Holder | None]]:
        """Take in items of one namespace that carry idempotency keys; also who holds each key, None where its slot
        is not at home here. `unique_keys` are held by no item that has ended."""
        order = sorted(range(len(rows)), key=keys.__getitem__)

        async def ask(refs: Refs) -> tuple[Enqueued, list[Holder | None]]:
            namespace_ids = [refs[rows[0].kind.topic].namespace_id] * len(rows)

            async def work(tx: Transaction) -> tuple[Enqueued, list[Holder | None]]:
                if unique_keys:
                    await lock_keys(tx, namespace_ids[: len(unique_keys)], unique_keys)
                won = await tx.fetch(
                    SQL.take_keys,
                    namespace_ids=namespace_ids,
                    keys=[keys[i] for i in order],
                    ids=[rows[i].id for i in order],
                    fingerprints=[fingerprints[i] for i in order],
                    slots=[slots[i] for i in order],
                    unique_keys=unique_keys,
                )
                ids = {row["id"] for row in won}
                taken = [row for row in rows if row.id in ids]
                flushed = _enqueued(await tx.row(SQL.enqueue, **self._arguments(taken, refs)), refs)
                found = await tx.fetch(SQL.key_holders, namespace_ids=namespace_ids, keys=keys, slots=slots)
                holders = {row["key"]: Holder(row["id"], row["fingerprint"]) for row in found}
                return flushed._replace(taken=sorted(ids)), [holders.get(key) for key in keys]

            return await self.pool.transaction(work)

        return await self._named(pairs_of(rows), ask)

    def _arguments(self, rows: Sequence[NewRow], refs: Refs, offers: Sequence[Offer] = ()) -> dict[str, object]:
        return {
            **columns(rows, refs),
            **self._ages,
            "early_s": EARLY_S_MAX,
            **offered(offers, self._answer_bytes_max),
        }

    async def _named(self, pairs: Iterable[Pair], ask: Callable[[Refs], Awaitable[T]]) -> T:
        """Ask with the numbers of topics; where one is void, its names are read, or made, anew."""
        wanted = set(pairs)
        for _ in range(NAMING_TRIES_MAX):
            refs = await self.names.make(wanted)
            if len(refs) < len(wanted):
                continue  # deleted as they were found
            try:
                return await ask(refs)
            except Strangers as error:
                self.names.forget(error.topic_ids)
            except Declined:
                # One of them is void; which others are, too, is not known.
                self.names.forget([ref.topic_id for ref in refs.values()])
        raise ShardUnavailable(f"topics on shard {self.number} come and go too fast; send the call again")


def _enqueued(row: Record, refs: Refs) -> Enqueued:
    if row["strangers"] is not None:
        raise Strangers(row["strangers"])
    return Enqueued(row["at"], row["taken"], refs, handed_of(row["handed"]))
