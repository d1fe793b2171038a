"""The shard map: which numbers exist and the connections to each. A shard is one schema in some database."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from shared.breaker import Breaker
from shared.errors import ShardUnavailable, Unavailable
from shared.log import log
from shared.metrics import SHARD_BREAKER, SHARD_POOL_IN_USE, SHARD_POOL_WAITING
from shared.pg import Pool
from shared.schema import head
from shared.settings import EdgeSettings, ShardAddress
from shared.sql import Statement

# What an id or key hashes to; slots have homes so that growing moves slots, never items.
SLOTS = 4096

PING = Statement("ping", (), "SELECT 1")
READY_S = 2.0

_BREAKER_STATES = ("closed", "half_open", "open")

_REVISION = Statement("revision", (), "SELECT version_num FROM alembic_version")
_MIGRATED = Statement("migrated", (), "SELECT to_regclass('alembic_version') IS NOT NULL AS migrated")

# Without these a crash of the server's machine may lose or tear what was answered for.
_DURABILITY = Statement(
    "durability",
    (),
    "SELECT name FROM unnest(ARRAY['fsync', 'full_page_writes']) AS name WHERE current_setting(name) <> 'on'",
)


class StaleSchema(Exception):
    """A shard is not at the revision this code was written for: run `python -m migrations up`."""


class Shard:
    """One shard: its number and two pools, durable and relaxed."""

    def __init__(self, address: ShardAddress, settings: EdgeSettings) -> None:
        self.number = address.number
        self.address = address
        state = SHARD_BREAKER.labels(address.schema)
        state.set(0)
        self.breaker = Breaker()
        self.breaker.listeners.append(lambda to: state.set(_BREAKER_STATES.index(to)))
        self.pool = Pool(address, settings, breaker=self.breaker)
        self.relaxed = Pool(address, settings, relaxed=True, breaker=self.breaker)
        for name, lanes in (("durable", self.pool.lanes), ("relaxed", self.relaxed.lanes)):
            SHARD_POOL_IN_USE.labels(address.schema, name).set_function(partial(getattr, lanes, "taken"))
            SHARD_POOL_WAITING.labels(address.schema, name).set_function(partial(getattr, lanes, "waiting"))

    async def close(self) -> None:
        """Close both pools."""
        await asyncio.gather(self.pool.close(), self.relaxed.close())

    def __repr__(self) -> str:
        return f"Shard({self.address.schema})"


class ShardMap:
    """All shards of one service, by number."""

    def __init__(self, addresses: Sequence[ShardAddress], settings: EdgeSettings) -> None:
        assert addresses, "a service needs at least one shard"
        self._shards = {address.number: Shard(address, settings) for address in addresses}
        self._numbers = sorted(self._shards)
        self._turn = 0

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards.values())

    def __len__(self) -> int:
        return len(self._shards)

    def get(self, number: int) -> Shard | None:
        """The shard of that number, or None: the number in an id is the caller's word until looked up."""
        return self._shards.get(number)

    def of_slot(self, slot: int) -> Shard:
        """The home of a hash slot (0 to 4,095)."""
        return self._shards[self._numbers[slot * len(self._numbers) // SLOTS]]

    def next(self) -> Shard:
        """The next shard in turn, for what may live anywhere: one that takes items, while any does."""
        for _ in self._numbers:
            self._turn = (self._turn + 1) % len(self._numbers)
            shard = self._shards[self._numbers[self._turn]]
            if shard.breaker.takes_items:
                break
        return shard

    async def check_schema(self, service: str) -> None:
        """Compare every reachable shard's revision with the code's.

        Raises:
            StaleSchema: a shard is behind or ahead, or was never migrated.
            ShardUnavailable: no shard can be reached.
        """
        wanted = head(service)
        found = await asyncio.gather(*(self._look(shard) for shard in self), return_exceptions=True)
        for shard, answer in zip(self, found, strict=True):
            if isinstance(answer, ShardUnavailable):
                continue
            if isinstance(answer, BaseException):
                raise answer
            revision, volatile = answer
            if revision != wanted:
                raise StaleSchema(
                    f"{shard.address.schema} is at revision {revision or 'none'}, this code needs {wanted}: "
                    "run `python -m migrations up`"
                )
            if volatile:
                log.error(
                    "this shard's server may lose answered calls when its machine crashes",
                    shard=shard.address.schema,
                    off=volatile,
                )
        if all(isinstance(answer, ShardUnavailable) for answer in found):
            raise ShardUnavailable("no shard can be reached")

    async def ready(self) -> dict[str, Any]:
        """What `/readyz` shows: a service is ready while it reaches any shard.

        Raises:
            Unavailable: no shard can be reached.
        """

        async def ask(shard: Shard) -> str:
            try:
                async with asyncio.timeout(READY_S):
                    await shard.pool.fetch(PING)
            except (ShardUnavailable, TimeoutError):
                return "down"
            return "up"

        answers = await asyncio.gather(*map(ask, self))
        found = {shard.address.schema: answer for shard, answer in zip(self, answers, strict=True)}
        if "up" not in found.values():
            raise Unavailable("no shard can be reached", retry_after_s=1.0)
        return {"status": "ready", "shards": found}

    async def close(self) -> None:
        """Close all pools."""
        await asyncio.gather(*(shard.close() for shard in self))

    @staticmethod
    async def _look(shard: Shard) -> tuple[str | None, list[str]]:
        """A shard's revision, and what its server has switched off that durability needs."""
        if not (await shard.pool.row(_MIGRATED))["migrated"]:
            return None, []
        row = await shard.pool.row(_REVISION)
        volatile = [found["name"] for found in await shard.pool.fetch(_DURABILITY)]
        return None if row is None else str(row["version_num"]), volatile


def require_schema(addresses: Sequence[ShardAddress], settings: EdgeSettings, service: str) -> None:
    """Look at the shards before anything is served; on a stale or absent one say so in a line and exit."""

    async def check() -> None:
        shards = ShardMap(addresses, settings)
        try:
            await shards.check_schema(service)
        finally:
            await shards.close()

    try:
        asyncio.run(check())
    except (StaleSchema, ShardUnavailable) as error:
        sys.exit(f"headgate {service}: {error}")
