"""What the queue service is compared with, on the same server and with the same session settings.

`Reference` is a plain one-table SKIP LOCKED queue that never changes. `OwnStatements` are the service's own,
called by its own `Store` on its own shards, without HTTP, flushes, validation or merging: what lies between
them and the service is the price of being a service.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.direct import DirectShard
from benchmarks.load import PAYLOAD
from benchmarks.stack import BenchStack
from headgate._ids import new_ids, time_ms_of
from services.queue.model import SEPARATOR, Claim, Key, NewRow, RareKind
from services.queue.store.shard_store import Store
from shared.postgres.session import PINNED
from shared.postgres.sql import load

SQL = load(Path(__file__).parent / "sql")
CONNECTIONS = 4
LEASE_S = 60.0
_TOPIC = ("bench-floor", "floor")
_ENCODED = f'"{PAYLOAD}"'

Cycle = Callable[[], Awaitable[int]]


class Reference:
    """Insert, lease with SKIP LOCKED, delete: three statements and commits a batch."""

    def __init__(self, connections: list[Any]) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, stack: BenchStack) -> Reference:
        """Make the table and the connections."""
        admin = await stack.connect({})
        try:
            await admin.execute(SQL.make_reference.text)
        finally:
            await admin.close()
        session = {**PINNED, "search_path": "reference"}
        return cls([await stack.connect(session) for _ in range(CONNECTIONS)])

    async def __aenter__(self) -> Reference:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def cycles(self, batch: int, payload: str = PAYLOAD) -> list[Cycle]:
        """One cycle per connection."""
        return [_reference_cycle(connection, batch, payload) for connection in self._connections]

    async def fill(self, count: int) -> None:
        """Add items, 1,000 a statement."""
        for first in range(0, count, 1_000):
            await self._connections[0].execute(SQL.reference_insert.text, [_ENCODED] * min(1_000, count - first))


class OwnStatements:
    """Enqueue, claim the ids just made, ack: the service's three statements, on shards in turn."""

    def __init__(self, shards: list[DirectShard], cycles: Callable[[int], list[Cycle]]) -> None:
        self._shards = shards
        self.cycles = cycles

    @classmethod
    async def open(cls, stack: BenchStack) -> OwnStatements:
        """Connect, and make the topic on every shard. `cycles(batch)` is one cycle per connection."""
        numbers = [address.number for address in stack.queue_addresses]
        shards = [await DirectShard.open(stack, numbers[i % len(numbers)], PINNED) for i in range(CONNECTIONS)]
        places = []
        for shard in shards:
            store = shard.store
            ref = (await store.names.make([_TOPIC]))[_TOPIC]
            places.append((store, ref.namespace_id, ref.topic_id))
        return cls(shards, lambda batch: [_own_cycle(*place, batch) for place in places])

    async def __aenter__(self) -> OwnStatements:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(shard.close() for shard in self._shards))


def _reference_cycle(connection: Any, batch: int, payload: str) -> Cycle:
    payloads = [f'"{payload}"'] * batch

    async def cycle() -> int:
        await connection.execute(SQL.reference_insert.text, payloads)
        rows = await connection.fetch(SQL.reference_lease.text, batch)
        await connection.execute(SQL.reference_delete.text, [row["id"] for row in rows])
        return len(rows)

    return cycle


def _own_cycle(store: Store, namespace_id: int, topic_id: int, batch: int) -> Cycle:
    payloads = SEPARATOR.join([_ENCODED] * batch)

    async def cycle() -> int:
        ids = new_ids(store.number, batch)
        at, *_ = await store.enqueue_plain([((*_TOPIC, 0, LEASE_S), ids, payloads)])
        token = str(UUID(bytes=secrets.token_bytes(16)))
        claim = Claim(topic_id, [Key(0, at, item) for item in ids], token, LEASE_S)
        [group], _ = await store.claim([claim], relaxed=False)
        acked = await store.ack(ids, [token] * batch, [namespace_id] * batch, {}, relaxed=False)
        assert group.items == batch and acked.acked is None
        return batch

    return cycle


def new_row(item_id: str, topic: tuple[str, str], *, remembered: bool = False) -> NewRow:
    """A plain item as the broker would write it; `remembered` as if its caller had made the id."""
    kind = RareKind(topic, None, 0, LEASE_S, remembered, None)
    return NewRow(item_id, kind, time_ms_of(item_id), _ENCODED, None, False)
