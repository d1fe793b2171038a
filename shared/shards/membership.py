"""Which processes of a service there are, by Redis: each says every few seconds that it is there.

One sorted set per service of an installation, scored by Redis' own clock, so hosts' clocks do not matter. What
it says is used to share out shards, never to decide anything: a member that is not there makes shards be owned
later, one that is not seen keeps what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from shared import vital
from shared.log import log
from shared.redis import CALL_TIMEOUT_S, Lost, connect, listen

_BEAT = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms)
redis.call('ZADD', KEYS[1], now_ms + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class Membership:
    """This process among those of its service."""

    def __init__(self, url: str | None, prefix: str, service: str, name: str) -> None:
        self._redis: Redis | None = connect(url) if url else None
        self._ear: Redis | None = connect(url, patient=True) if url else None
        self._key = f"{prefix}:{service}:members"
        self._channel = f"{prefix}:{service}:owners"
        self._name = name
        self._listening: asyncio.Task[None] | None = None

    def start(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever another process says that owners change."""

        def heard(data: bytes) -> None:
            if data != self._name.encode():
                changed()

        if self._ear is not None:
            self._listening = vital.PROCESS.keep(listen(self._ear, self._channel, heard), "membership")

    async def beat(self, ttl_s: float) -> set[str] | None:
        """Say that this process is there for `ttl_s`; who else is. None: Redis does not know."""
        ttl_ms = str(int(ttl_s * 1000))
        found = await self._try(lambda redis: redis.eval(_BEAT, 1, self._key, self._name, ttl_ms))
        return None if found is None else {member.decode() for member in found}

    async def leave(self) -> None:
        """This process is no member any more."""
        await self._try(lambda redis: redis.zrem(self._key, self._name))

    async def tell(self) -> None:
        """Owners change: others should look now."""
        await self._try(lambda redis: redis.publish(self._channel, self._name))

    async def close(self) -> None:
        """Stop listening and close the connections."""
        await vital.end([self._listening])
        for redis in (self._redis, self._ear):
            if redis is not None:
                await redis.aclose()

    async def _try(self, work: Callable[[Redis], Any]) -> Any:
        """What Redis answers; None when there is none, or no answer."""
        if self._redis is None:
            return None
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await work(self._redis)
        except Lost as error:
            log.debug("redis does not answer", error=str(error))
            return None
