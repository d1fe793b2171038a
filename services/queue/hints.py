"""Hints between hosts: what became ready here may be waited for elsewhere.

A hint is a few keys of a topic, gathered for a moment and published over Redis to the other queue processes,
which push them into the lines that somebody asks at; where nobody does, an owner pushes them, and others note
that there are some. Losing one costs no more than the time to the next poll. While nobody else listens, nothing is
sent but one probe a second.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from redis.asyncio import Redis

from services.queue.dispatch import Dispatch
from services.queue.model import Key
from shared.clock import Clock
from shared.log import log
from shared.redis import Lost, connect, listen

KEYS_PER_TOPIC_MAX = 256
TOPICS_MAX = 1_000
PROBE_S = 1.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Hint(msgspec.Struct, array_like=True):
    """Keys of one topic on one shard: (priority, deliver_at in microseconds since the epoch, id)."""

    namespace: str
    topic: str
    shard: int
    keys: list[tuple[int, int, str]]


class Hints(msgspec.Struct, array_like=True):
    """One message: who speaks, and what it knows."""

    origin: str
    hints: list[Hint]


class _HeardHint(msgspec.Struct, array_like=True):
    namespace: str
    topic: str
    shard: int
    keys: msgspec.Raw


class _Heard(msgspec.Struct, array_like=True):
    """As `Hints`; keys are read where somebody asks for the topic."""

    origin: str
    hints: list[_HeardHint]


_decoder = msgspec.msgpack.Decoder(_Heard)
_keys_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, str]])


class Messenger:
    """Tells other hosts what became ready, and this host what they tell."""

    def __init__(self, url: str, prefix: str, dispatch: Dispatch, clock: Clock) -> None:
        self._redis: Redis = connect(url)
        self._ear: Redis = connect(url, patient=True)
        self._channel = f"{prefix}:queue:ready"
        self._dispatch = dispatch
        self._clock = clock
        self._origin = secrets.token_hex(8)
        self._gathered: dict[tuple[str, str, int], list[Key]] = {}
        self._news = asyncio.Event()
        self._listeners = 0
        self._probed_s = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def tell(self, namespace: str, topic: str, shard: int, keys: Sequence[Key]) -> None:
        """Remember keys for the next message; too many are dropped, the poll will find them."""
        gathered = self._gathered.get((namespace, topic, shard))
        if gathered is None:
            if len(self._gathered) >= TOPICS_MAX:
                return
            gathered = self._gathered[namespace, topic, shard] = []
        gathered.extend(keys[: KEYS_PER_TOPIC_MAX - len(gathered)])
        self._news.set()

    def start(self) -> None:
        """Begin to speak and to listen."""
        self._tasks = [
            asyncio.create_task(self._speak()),
            asyncio.create_task(listen(self._ear, self._channel, self.heard)),
        ]

    async def stop(self) -> None:
        """Stop both and close the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self._redis.aclose(), self._ear.aclose())

    async def _speak(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            gathered, self._gathered = self._gathered, {}
            now_s = self._clock.monotonic_s()
            if not self._listeners and now_s - self._probed_s < PROBE_S:
                continue
            self._probed_s = now_s
            try:
                heard = await self._redis.publish(self._channel, self._message(gathered))
                self._listeners = max(0, int(heard) - 1)
            except Lost as error:
                self._listeners = 0
                log.debug("hints are not sent", error=str(error))

    def _message(self, gathered: dict[tuple[str, str, int], list[Key]]) -> bytes:
        hints = [
            Hint(
                namespace,
                topic,
                shard,
                [(key.priority, (key.deliver_at - _EPOCH) // _MICROSECOND, key.id) for key in keys],
            )
            for (namespace, topic, shard), keys in gathered.items()
        ]
        return msgspec.msgpack.encode(Hints(self._origin, hints))

    def heard(self, data: bytes) -> None:
        """Take in one message; nonsense is dropped."""
        with suppress(msgspec.MsgspecError, OverflowError):
            message = _decoder.decode(data)
            if message.origin != self._origin:
                for hint in message.hints:
                    self._dispatch.hinted(hint.namespace, hint.topic, hint.shard, partial(_read, hint.keys))


def _read(keys: msgspec.Raw) -> list[Key]:
    return [Key(p, _EPOCH + _MICROSECOND * micros, item_id) for p, micros, item_id in _keys_decoder.decode(keys)]
