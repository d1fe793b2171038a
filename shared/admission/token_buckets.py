"""Token buckets shared over hosts: `rate_s` tokens a second, at most `burst` at once.

The bucket is in Redis and counts by Redis's clock. A host takes what a call needs and `AHEAD_S` of the rate
besides, so that most calls ask nobody; when the bucket is empty the host knows for how long and does not ask
again before. Tokens are taken before they are used and never given back, so in any window

    accepted <= rate x window + burst + hosts x (AHEAD_S x rate + 1)

While Redis does not answer, a host goes on at the full rate without saving anything up: the bound is then per
host, without the burst. Without any Redis each host has a bucket of its own. A Redis that comes back without
its data fills each bucket once more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis

from shared.clock import Clock
from shared.log import log
from shared.redis import Lost

AHEAD_S = 0.1
# How long a host goes on by itself before it asks Redis again.
ALONE_S = 1.0
RETRY_S_MAX = 60.0
KEYS_MAX = 100_000

_TAKE = """
local now = tonumber(ARGV[5])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local rate, burst, need, ahead = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local at = tonumber(found[2]) or now
local tokens = math.min(burst, (tonumber(found[1]) or burst) + math.max(0, now - at) * rate)
local given = math.min(math.floor(tokens), need + ahead)
tokens = tokens - given
local left, seen = string.format('%.6f', tokens), string.format('%.6f', math.max(at, now))
redis.call('HSET', KEYS[1], 'tokens', left, 'at', seen)
redis.call('EXPIRE', KEYS[1], math.ceil(burst / math.max(rate, 0.001)) + 60)
local wait = 0
if given < need then wait = (1 - (tokens - math.floor(tokens))) / math.max(rate, 0.0001) end
return {given, string.format('%.6f', wait)}
"""


class Rate(NamedTuple):
    """What a bucket gives."""

    rate_s: float
    burst: int

    @classmethod
    def per_minute(cls, count: int) -> Rate:
        """So many a minute, all of them at once if nothing came before."""
        return cls(count / 60.0, count)


class Taken(NamedTuple):
    """How many tokens a call got, and when there will be another."""

    tokens: int
    retry_after_s: float


class _Local:
    """One bucket as this host sees it: tokens taken ahead, and when to ask again."""

    def __init__(self, now_s: float, tokens: float, rate: Rate) -> None:
        self.rate = rate
        self.lock = asyncio.Lock()
        self.tokens = tokens
        self.filled_s = now_s
        self.empty_until_s = 0.0


class Buckets:
    """The buckets of one service of an installation, by key; `prefix` is that of their names in Redis."""

    def __init__(
        self, prefix: str, redis: Redis | None, clock: Clock, *, shared_now: Callable[[], float] | None = None
    ) -> None:
        self._prefix = f"{prefix}:bucket:"
        self._redis = redis
        self._clock = clock
        self._shared_now = shared_now
        self._script = redis.register_script(_TAKE) if redis is not None else None
        self._alone_until_s = 0.0 if redis is not None else math.inf
        self._locals: dict[str, _Local] = {}

    async def take(self, key: str, rate: Rate, wanted: int) -> Taken:
        """Up to `wanted` tokens; fewer when the bucket has no more."""
        local = self._local(key, rate)
        if local.tokens >= wanted:
            local.tokens -= wanted
            return Taken(wanted, 0.0)
        async with local.lock:
            wait_s = await self._fill(key, local, rate, wanted)
            tokens = min(wanted, int(local.tokens))
            local.tokens -= tokens
            return Taken(tokens, wait_s if tokens < wanted else 0.0)

    async def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            await self._redis.aclose()

    def _local(self, key: str, rate: Rate) -> _Local:
        local = self._locals.get(key)
        if local is None:
            if len(self._locals) >= KEYS_MAX:
                self._locals.clear()  # what was taken ahead is lost, which errs on the safe side
            tokens = float(rate.burst) if self._redis is None else 0.0
            local = self._locals[key] = _Local(self._clock.monotonic_s(), tokens, rate)
        if local.rate != rate:
            local.rate = rate
            # What was taken ahead at the old rate is let go of; the shared bucket knows the rest.
            local.tokens = min(local.tokens, float(rate.burst)) if self._redis is None else 0.0
            local.empty_until_s = 0.0
        return local

    async def _fill(self, key: str, local: _Local, rate: Rate, wanted: int) -> float:
        """Get more tokens; how long until there is another one where these do not suffice."""
        now_s = self._clock.monotonic_s()
        if now_s < local.empty_until_s:
            return local.empty_until_s - now_s
        if now_s >= self._alone_until_s:
            try:
                wait_s = await self._lease(key, local, rate, wanted)
            except Lost as error:
                log.warning("quotas go on without Redis", error=str(error))
                self._alone_until_s = now_s + ALONE_S
            else:
                local.filled_s = self._clock.monotonic_s()
                local.empty_until_s = local.filled_s + wait_s
                return wait_s
        # Nothing may be saved up by a host alone, or each loss of Redis would be worth a burst.
        cap = float(rate.burst) if self._redis is None else min(rate.burst, AHEAD_S * rate.rate_s + 1)
        grown = local.tokens + (now_s - local.filled_s) * rate.rate_s
        local.tokens = max(local.tokens, min(grown, cap))
        local.filled_s = now_s
        return min((1 - local.tokens % 1) / max(rate.rate_s, 0.0001), RETRY_S_MAX)

    async def _lease(self, key: str, local: _Local, rate: Rate, wanted: int) -> float:
        assert self._script is not None
        need = wanted - int(local.tokens)
        ahead = int(AHEAD_S * rate.rate_s)
        now: Any = "" if self._shared_now is None else repr(self._shared_now())
        given, wait = await self._script(
            keys=[self._prefix + key], args=[rate.rate_s, rate.burst, need, ahead, now]
        )
        local.tokens += int(given)
        return min(float(wait), RETRY_S_MAX)
