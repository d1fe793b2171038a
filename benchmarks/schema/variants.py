"""The variants: how each enqueues, claims and acks a batch on its own schema."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.direct import DirectShard
from benchmarks.floors import new_row
from benchmarks.load import PAYLOAD
from headgate._ids import new_ids
from services.queue.keys.key_buffer import START, Buffer
from services.queue.model import Claim, Key, KeyLook
from services.queue.store.leases import SweepBounds, take_expired
from services.queue.store.names import SQL as SERVICE_SQL
from services.queue.store.shard_store import Store
from shared.postgres.connections import Transaction
from shared.postgres.sql import load

SQL = load(Path(__file__).parent)
BATCH = 100
LEASE_S = 2.0
TOPIC = ("default", "backlog")
NAMESPACE_ID = 1  # `default`, the first that a migration makes
_PEEK_KEYS = 1_000
_REWIND_S = 0.8
_SWEEP_ITEMS = 2_000
# After five executions Postgres may settle on a generic plan.
_IDLE_CALLS = 8
_PAYLOADS = [f'"{PAYLOAD}"'] * BATCH

Cycle = Callable[[], Awaitable[int]]
Ids = Sequence[str]


@dataclass
class Timer:
    """Seconds, added up over calls that may overlap."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Any:
        """Add the time spent inside."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun


class Keys:
    """Keys of ready items as the service keeps them: told by enqueues, peeked from a start hint, never claimed."""

    def __init__(self, number: int, topic_id: int) -> None:
        self._buffer = Buffer([number], keys_max=8_000)
        self._number = number
        self._topic_id = topic_id
        self._filling = asyncio.Lock()
        self._rewound_s = 0.0

    def told(self, at: Any, ids: Ids) -> None:
        """Items have just become ready."""
        self._buffer.push(self._number, [Key(0, at, item) for item in ids])

    async def take(self, store: Store, count: int) -> list[Key]:
        """The keys of the next items, in order."""
        if self._is_old() or self._buffer.behind(count):
            async with self._filling:
                await self._fill(store, count)
        return self._buffer.take(count)

    async def _fill(self, store: Store, count: int) -> None:
        if self._is_old():
            self._rewound_s = time.perf_counter()
            self._buffer.rewind()
        for shard, bound in self._buffer.behind(count):
            self._buffer.peeking(shard, bound)
            keys = await store.peek(KeyLook(*TOPIC, self._topic_id, bound, bound), _PEEK_KEYS)
            self._buffer.peeked(shard, keys or [], limit=_PEEK_KEYS)

    def _is_old(self) -> bool:
        return time.perf_counter() - self._rewound_s >= _REWIND_S

    def settled(self, keys: Sequence[Key]) -> None:
        """These have been claimed, or were gone."""
        self._buffer.settled(keys)


@dataclass
class Site:
    """One variant's schema: a worker per connection, the keys they share, and how their claims went."""

    shards: list[DirectShard]
    topic_id: int
    keys: Keys
    claims: Timer = field(default_factory=Timer)
    timeouts: int = 0


Enqueue = Callable[[Site, DirectShard, Ids], Awaitable[Any]]
ClaimItems = Callable[[Site, DirectShard, str], Awaitable[Ids]]
AckItems = Callable[[Site, DirectShard, Ids, str], Awaitable[int]]


@dataclass(frozen=True)
class Variant:
    """A name, the three steps, the block that fills its backlog, and whether leases that end are swept."""

    name: str
    shard: int
    enqueue: Enqueue
    claim: ClaimItems
    ack: AckItems
    fill: str = "member_fill"
    sweeps: bool = True

    def cycles(self, site: Site) -> list[Cycle]:
        """One cycle per connection."""
        return [self._cycle(site, shard) for shard in site.shards]

    def _cycle(self, site: Site, shard: DirectShard) -> Cycle:
        async def cycle() -> int:
            try:
                return await self._batch(site, shard)
            except asyncpg.QueryCanceledError:
                site.timeouts += 1
                return 0

        return cycle

    async def _batch(self, site: Site, shard: DirectShard) -> int:
        token = str(UUID(bytes=secrets.token_bytes(16)))
        await self.enqueue(site, shard, new_ids(shard.number, BATCH))
        with site.claims.running():
            ids = await self.claim(site, shard, token)
        acked = await self.ack(site, shard, ids, token)
        assert acked == len(ids), f"{self.name} lost {len(ids) - acked} of {len(ids)} leases"
        return acked


async def sweep(shard: DirectShard) -> int:
    """What the reaper does with groups that ran out: take them, look for their items; how many ids that met."""

    async def work(tx: Transaction) -> int:
        groups = await take_expired(tx, SweepBounds(_SWEEP_ITEMS))
        ids = [item for group in groups for item in group.ids]
        if ids:
            await tx.fetch(SERVICE_SQL.lock_items, ids=ids)
        return len(ids)

    return await shard.transaction(work)


async def start_idle(shard: DirectShard, topic_id: int) -> None:
    """What a session does that starts before the first item: it looks, claims and acks in vain."""
    for _ in range(_IDLE_CALLS):
        await shard.store.peek(KeyLook(*TOPIC, topic_id, START, START), _PEEK_KEYS)
        ids = new_ids(shard.number, 2)
        await shard.store.claim(
            [Claim(topic_id, [Key(*START[:2], item)], item, LEASE_S) for item in ids], relaxed=False
        )
        await shard.store.ack(ids, ids, [NAMESPACE_ID] * len(ids), {}, relaxed=False)


async def state_enqueue(site: Site, shard: DirectShard, ids: Ids) -> Any:
    return await shard.row(SQL.state_enqueue, ids=ids, payloads=_PAYLOADS, topic_id=site.topic_id)


async def state_claim(site: Site, shard: DirectShard, token: str) -> Ids:
    found = await shard.fetch(SQL.state_claim, topic_id=site.topic_id, limit=BATCH, token=token, lease_s=LEASE_S)
    return [row["id"] for row in found]


async def state_ack(site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
    return await _ack(SQL.state_ack, site, shard, ids, token)


async def member_enqueue(site: Site, shard: DirectShard, ids: Ids) -> Any:
    return await shard.row(SQL.member_enqueue, ids=ids, payloads=_PAYLOADS, topic_id=site.topic_id)


async def member_enqueue_told(site: Site, shard: DirectShard, ids: Ids) -> Any:
    site.keys.told((await member_enqueue(site, shard, ids))["at"], ids)


async def head_claim(site: Site, shard: DirectShard, token: str) -> Ids:
    found = await shard.fetch(
        SQL.claim_from_head, topic_id=site.topic_id, limit=BATCH, token=token, lease_s=LEASE_S
    )
    return [row["id"] for row in found]


async def keys_claim(site: Site, shard: DirectShard, token: str) -> Ids:
    return await _claim_keys(SQL.claim_by_keys, site, shard, token)


async def rows_claim(site: Site, shard: DirectShard, token: str) -> Ids:
    return await _claim_keys(SQL.claim_by_keys_into_rows, site, shard, token)


async def groups_ack(site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
    return await _ack(SQL.ack_groups, site, shard, ids, token)


async def rows_ack(site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
    return await _ack(SQL.ack_rows, site, shard, ids, token)


def in_tens(ack: AckItems) -> AckItems:
    """The same items, ten an ack call."""

    async def acked(site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
        done = 0
        for start in range(0, len(ids), 10):
            done += await ack(site, shard, ids[start : start + 10], token)
        return done

    return acked


async def service_enqueue(site: Site, shard: DirectShard, ids: Ids) -> Any:
    await _service_enqueue(site, shard, ids, remembered=False)


async def service_enqueue_remembered(site: Site, shard: DirectShard, ids: Ids) -> Any:
    await _service_enqueue(site, shard, ids, remembered=True)


async def service_claim(site: Site, shard: DirectShard, token: str) -> Ids:
    store = shard.store
    keys = await site.keys.take(store, BATCH)
    try:
        claim = Claim(site.topic_id, keys, token, LEASE_S)
        groups = (await store.claim([claim], relaxed=False))[0] if keys else []
        return [item_id for group in groups for item_id in group.ids()]
    finally:
        site.keys.settled(keys)


async def service_ack(site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
    if not ids:
        return 0
    flushed = await shard.store.ack(ids, [token] * len(ids), [NAMESPACE_ID] * len(ids), {}, relaxed=False)
    return len(ids) if flushed.acked is None else len(flushed.acked)


async def _service_enqueue(site: Site, shard: DirectShard, ids: Ids, *, remembered: bool) -> None:
    made = [new_row(item, TOPIC, remembered=remembered) for item in ids]
    site.keys.told((await shard.store.enqueue(made)).at, ids)


async def _claim_keys(statement: Any, site: Site, shard: DirectShard, token: str) -> Ids:
    keys = await site.keys.take(shard.store, BATCH)
    ids = sorted(key.id for key in keys)
    try:
        found = await shard.fetch(statement, ids=ids, topic_id=site.topic_id, token=token, lease_s=LEASE_S)
    finally:
        site.keys.settled(keys)
    return [row["id"] for row in found]


async def _ack(statement: Any, site: Site, shard: DirectShard, ids: Ids, token: str) -> int:
    found = await shard.row(statement, ids=ids, tokens=[token] * len(ids), topic_id=site.topic_id)
    return int(found["acked"])


STATE = Variant("state column, SKIP LOCKED", 0, state_enqueue, state_claim, state_ack, "state_fill", sweeps=False)
HEAD = Variant("membership, SKIP LOCKED", 1, member_enqueue, head_claim, groups_ack)
KEYS = Variant("membership, keys ahead", 2, member_enqueue_told, keys_claim, groups_ack)
ROWS = Variant("membership, keys ahead, lease rows", 3, member_enqueue_told, rows_claim, rows_ack)
KEYS_TENS = Variant("lease groups, acked in tens", 2, member_enqueue_told, keys_claim, in_tens(groups_ack))
ROWS_TENS = Variant("lease rows, acked in tens", 3, member_enqueue_told, rows_claim, in_tens(rows_ack))
PLAIN = Variant("service, ids made here", 4, service_enqueue, service_claim, service_ack)
REMEMBERED = Variant("service, ids by the caller", 5, service_enqueue_remembered, service_claim, service_ack)
PINNED_PLANS = Variant("service, pinned plans", 6, service_enqueue, service_claim, service_ack)
DEFAULT_PLANS = Variant("service, default planner", 7, service_enqueue, service_claim, service_ack)
SHARDS = 8

FOLD = SERVICE_SQL.fold_counts
