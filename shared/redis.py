"""A connection to Redis or Valkey that is never needed: every call has a short timeout, every failure is a shrug.

Nothing that is true lives there. Hints, membership and quota slices do, and each has a way to do without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from shared.log import log

CALL_TIMEOUT_S = 0.5
LISTEN_AGAIN_S = 1.0

Lost = (RedisError, OSError, TimeoutError)


def connect(url: str, *, patient: bool = False) -> Redis:
    """A client with short timeouts; it connects when first used, and again after a loss.

    A call is tried once. A `patient` client waits for its next message as long as it takes: that is for
    subscriptions.
    """
    return Redis.from_url(
        url,
        socket_connect_timeout=CALL_TIMEOUT_S,
        socket_timeout=None if patient else CALL_TIMEOUT_S,
        socket_keepalive=True,
        max_connections=8,
        retry=Retry(NoBackoff(), 0),
    )


async def listen(ear: Redis, channel: str, heard: Callable[[bytes], None]) -> None:
    """Tell `heard` every message of a channel, until cancelled.

    A lost connection is made again; a message that `heard` fails on is dropped.
    """
    while True:
        try:
            async with ear.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                while True:
                    message = await subscription.get_message(timeout=None)
                    if message is not None:
                        _tell(heard, message["data"])
        except Lost as error:
            log.info("not listening; polling goes on", channel=channel, error=str(error))
        except Exception:
            log.exception("not listening; polling goes on", channel=channel)
        await pause(LISTEN_AGAIN_S)


def _tell(heard: Callable[[bytes], None], data: bytes) -> None:
    try:
        heard(data)
    except Exception:
        log.exception("a message is dropped")


async def pause(pause_s: float) -> None:
    """Let some time pass."""
    try:
        async with asyncio.timeout(pause_s):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
