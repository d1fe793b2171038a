"""A connection to Redis or Valkey that is never needed: every call has a short timeout, every failure is a shrug.

Nothing that is true lives there. Hints, membership and quota slices do, and each has a way to do without.
"""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

CALL_TIMEOUT_S = 0.5
PREFIX = "headgate:"

Lost = (RedisError, OSError, TimeoutError)


def connect(url: str, *, patient: bool = False) -> Redis:
    """A client with short timeouts; it connects when first used, and again after a loss.

    A `patient` one waits for its next message as long as it takes: that is for subscriptions.
    """
    return Redis.from_url(
        url,
        socket_connect_timeout=CALL_TIMEOUT_S,
        socket_timeout=None if patient else CALL_TIMEOUT_S,
        socket_keepalive=True,
        max_connections=8,
    )
