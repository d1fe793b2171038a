"""Hints between hosts: what became ready here may be waited for elsewhere.

A hint is a few keys of a topic, gathered for a moment and published over Redis to the other queue processes,
which push them into the lines that somebody asks at; where nobody does, an owner pushes them, and others note
that there are some. Losing one costs no more than the time to the next poll. While nobody else listens, nothing is
sent but one probe a second.

Processes also say for which topics calls wait with them. Hints of these go out at once, others are gathered for
longer: most items are taken where they came, and every message is read by every process. And they say which topics
were paused, resumed or purged, so that nobody goes on with keys that have become worthless; and now and then which
are asked for at all, so that each can tell of one that nobody asks for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TypeAlias

import msgspec
from redis.asyncio import Redis

from services.queue.dispatch.announcements import Announcer
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.model import Key
from shared import vital
from shared.clock import Clock
from shared.ids import ShardNo
from shared.log import log
from shared.redis import Lost, connect, listen, pause

KEYS_PER_TOPIC_MAX = 256
TOPICS_MAX = 1_000
PROBE_S = 1.0
# How long hints are gathered that nobody is known to wait for.
UNWANTED_S = 0.05
# For how many polls a topic counts as waited for after it was said to be: who waits says so every one or two.
WANTED_POLLS = 3
WANTED_MAX = 10_000
# How often it is said that a topic is asked for.
ASKED_S = 5.0

Topic: TypeAlias = tuple[str, str]
_Gathered: TypeAlias = dict[tuple[str, str, ShardNo], list[Key]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Hint(msgspec.Struct, array_like=True):
    """Keys of one topic on one shard: (priority, deliver_at in microseconds since the epoch, id)."""

    namespace: str
    topic: str
    shard: ShardNo
    keys: list[tuple[int, int, str]]


class Hints(msgspec.Struct, array_like=True):
    """One message: who speaks, what it knows, the (namespace, topic) that calls wait for there, those that were
    paused, resumed or purged there, and those that are asked for."""

    origin: str
    hints: list[Hint]
    wants: list[Topic]
    changes: list[Topic]
    asks: list[Topic]


class _HeardHint(msgspec.Struct, array_like=True):
    namespace: str
    topic: str
    shard: ShardNo
    keys: msgspec.Raw


class _Heard(msgspec.Struct, array_like=True):
    """As `Hints`; keys are read where somebody asks for the topic."""

    origin: str
    hints: list[_HeardHint]
    wants: list[Topic] = []
    changes: list[Topic] = []
    asks: list[Topic] = []


_decoder = msgspec.msgpack.Decoder(_Heard)
_keys_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, str]])


class Messenger(Announcer):
    """Tells other hosts what became ready."""

    def __init__(self, url: str, prefix: str, clock: Clock, *, poll_s: float) -> None:
        self.url = url
        self.channel = f"{prefix}:queue:ready"
        self._redis: Redis = connect(url)
        self._clock = clock
        self._poll_s = poll_s
        self.origin = secrets.token_hex(8)
        self._gathered: _Gathered = {}
        self._unwanted: _Gathered = {}
        self._is_gathering = False
        self._wants: dict[Topic, None] = {}  # to be said
        self._changes: dict[Topic, None] = {}  # likewise
        self._said_s: dict[Topic, float] = {}
        self._asks: dict[Topic, None] = {}  # to be said
        self._asks_said_s: dict[Topic, float] = {}
        self._wanted_until_s: dict[Topic, float] = {}  # elsewhere
        self._news = asyncio.Event()
        self._listeners = 0
        self._probed_s = float("-inf")
        self._speaking: asyncio.Task[None] | None = None

    def tell(self, namespace: str, topic: str, shard: ShardNo, keys: Sequence[Key]) -> None:
        """Remember keys for the next message; too many are dropped, the poll will find them."""
        now_s = self._clock.monotonic_s()
        if self._is_alone(now_s):
            return
        if self._wanted_until_s.get((namespace, topic), 0.0) >= now_s:
            _gather(self._gathered, (namespace, topic, shard), keys)
            self._news.set()
            return
        _gather(self._unwanted, (namespace, topic, shard), keys)
        if not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_later(UNWANTED_S, self.send_unwanted)

    def send_unwanted(self) -> None:
        """The hints that nobody is known to wait for have been gathered for long enough."""
        self._is_gathering = False
        gathered, self._unwanted = self._unwanted, {}
        for place, keys in gathered.items():
            _gather(self._gathered, place, keys)
        if gathered:
            self._news.set()

    def want(self, namespace: str, topic: str) -> None:
        """A call waits here for items of a topic."""
        now_s = self._clock.monotonic_s()
        if self._is_alone(now_s):
            return
        said_s = self._said_s.get((namespace, topic))
        if said_s is None or now_s - said_s >= self._poll_s:
            if len(self._said_s) >= WANTED_MAX:
                self._said_s.clear()
            self._said_s[namespace, topic] = now_s
            self._wants[namespace, topic] = None
            self._news.set()

    def tell_change(self, namespace: str, topic: str) -> None:
        """A topic was paused, resumed or purged. Said also where nobody listened a moment ago: it is rare."""
        if len(self._changes) < TOPICS_MAX:
            self._changes[namespace, topic] = None
            self._news.set()

    def ask(self, namespace: str, topic: str) -> None:
        """A call asks here for items of a topic, whether it waits or not."""
        now_s = self._clock.monotonic_s()
        said_s = self._asks_said_s.get((namespace, topic))
        if (said_s is not None and now_s - said_s < ASKED_S) or self._is_alone(now_s):
            return
        if len(self._asks_said_s) >= WANTED_MAX:
            self._asks_said_s.clear()
        self._asks_said_s[namespace, topic] = now_s
        self._asks[namespace, topic] = None
        self._news.set()

    def start(self) -> None:
        """Begin to speak."""
        self._speaking = vital.PROCESS.keep(self._speak(), "hints")

    async def stop(self) -> None:
        """Stop, and close the connection."""
        await vital.end([self._speaking])
        await self._redis.aclose()

    def _is_alone(self, now_s: float) -> bool:
        """Whether nobody listened a moment ago: then nothing is remembered for the next message."""
        return not self._listeners and now_s - self._probed_s < PROBE_S

    async def _speak(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._probed_s = self._clock.monotonic_s()
            try:
                heard = await self._redis.publish(self.channel, self.message())
                self._listeners = max(0, int(heard) - 1)
            except Lost as error:
                self._listeners = 0
                log.debug("hints are not sent", error=str(error))
            except Exception:
                self._listeners = 0
                log.exception("hints are not sent")
                await pause(PROBE_S)

    def message(self) -> bytes:
        """What is to be said now; of wants that are too many for one message, the rest is said in the next."""
        gathered, self._gathered = self._gathered, {}
        changes, self._changes = list(self._changes), {}
        wants, asks = (list(islice(topics, TOPICS_MAX)) for topics in (self._wants, self._asks))
        for topic in wants:
            del self._wants[topic]
        for topic in asks:
            del self._asks[topic]
        if self._wants or self._asks:
            self._news.set()
        hints = [
            Hint(
                namespace,
                topic,
                shard,
                [(key.priority, (key.deliver_at - _EPOCH) // _MICROSECOND, key.id) for key in keys],
            )
            for (namespace, topic, shard), keys in gathered.items()
        ]
        return msgspec.msgpack.encode(Hints(self.origin, hints, wants, changes, asks))

    def heard_wants(self, wants: Sequence[Topic]) -> None:
        """Another process has spoken, which listens then, too: calls wait there for items of these topics."""
        self._listeners = max(1, self._listeners)
        now_s = self._clock.monotonic_s()
        if len(self._wanted_until_s) + len(wants) > WANTED_MAX:
            self._wanted_until_s = {topic: s for topic, s in self._wanted_until_s.items() if s >= now_s}
        until_s = now_s + WANTED_POLLS * self._poll_s
        for topic in wants:
            if topic in self._wanted_until_s or len(self._wanted_until_s) < WANTED_MAX:
                self._wanted_until_s[topic] = until_s
        if wants and self._unwanted:
            self.send_unwanted()  # they may be of these


class Hearer:
    """Tells this host what others tell."""

    def __init__(self, dispatch: Dispatch, messenger: Messenger) -> None:
        self._redis: Redis = connect(messenger.url, patient=True)
        self._dispatch = dispatch
        self._messenger = messenger
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._listening = vital.PROCESS.keep(
            listen(self._redis, self._messenger.channel, self.heard), "hints heard"
        )

    async def stop(self) -> None:
        """Stop, and close the connection."""
        await vital.end([self._listening])
        await self._redis.aclose()

    def heard(self, data: bytes) -> None:
        """Take in one message; nonsense is dropped."""
        with suppress(msgspec.MsgspecError, OverflowError):
            message = _decoder.decode(data)
            if message.origin != self._messenger.origin:
                self._messenger.heard_wants(message.wants)
                for namespace, topic in message.changes:
                    self._dispatch.forget(namespace, topic)  # before the hints: they may be newer
                for hint in message.hints:
                    self._dispatch.hinted(hint.namespace, hint.topic, hint.shard, partial(_read, hint.keys))
                for namespace, topic in message.asks:
                    self._dispatch.asked.heard(namespace, topic)


def _gather(gathered: _Gathered, place: tuple[str, str, ShardNo], keys: Sequence[Key]) -> None:
    before = gathered.get(place)
    if before is None:
        if len(gathered) >= TOPICS_MAX:
            return
        before = gathered[place] = []
    before.extend(keys[: KEYS_PER_TOPIC_MAX - len(before)])


def _read(keys: msgspec.Raw) -> list[Key]:
    return [Key(p, _EPOCH + _MICROSECOND * micros, item_id) for p, micros, item_id in _keys_decoder.decode(keys)]
