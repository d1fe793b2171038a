"""What has become of DAGs, as processes that have committed it tell DAG processes over Redis.

Ids of DAGs that have ended are published at once, and those of runs whose code is awake and has something to be
told; of DAGs that have changed only the tags of their items, a few times a second. A message names what came
since the one before. It only saves time: losing one costs the time to the next look. PUBLISH returns how many
processes listen; where there is nothing to tell, an empty message is published once a second. An ack ends a DAG
only while some process listens for ends: without Redis, or where no DAG process listens, a DAG's end goes to the
DAG service, which tells its own callers. Processes that have streams listen for changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import msgspec
from redis.asyncio import Redis

from shared import ids, vital
from shared.log import log
from shared.redis import Lost, connect, pause

PROBE_S = 1.0
CHANGES_PAUSE_S = 0.05
NAMES_PER_MESSAGE_MAX = 1_000
NAMES_WAITING_MAX = 10_000

_RUN = "run:"

_decoder = msgspec.msgpack.Decoder(list[str])


def ended_channel(prefix: str) -> str:
    """Where the processes of one installation hear of ends."""
    return f"{prefix}:dag:ended"


def changed_channel(prefix: str) -> str:
    """Where they hear of changes."""
    return f"{prefix}:dag:changed"


def of_run(dag_id: str) -> str:
    """The name under which a run is told of that has not ended, and has news for who follows it."""
    return _RUN + dag_id


def read_ids(data: bytes) -> list[str]:
    """The ids of DAGs that a message names; what is none is left out."""
    found = map(ids.canonical, read(data))
    return [dag_id for dag_id in found if dag_id is not None]


def read_runs(data: bytes) -> list[str]:
    """The ids of runs that it names."""
    found = (ids.canonical(name.removeprefix(_RUN)) for name in read(data) if name.startswith(_RUN))
    return [dag_id for dag_id in found if dag_id is not None]


def read(data: bytes) -> list[str]:
    """What a message names."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return []


class Voice:
    """Speaks on a channel. `hearers`: how many processes heard the last message, at most about a second ago;
    `is_heard`: somebody did."""

    def __init__(self, url: str | None, channel: str, *, pause_s: float = 0.0) -> None:
        self._redis: Redis | None = connect(url) if url else None
        self._channel = channel
        self._pause_s = pause_s
        self._names: dict[str, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.hearers = 0

    @property
    def is_heard(self) -> bool:
        return self.hearers > 0

    def tell(self, names: Iterable[str]) -> None:
        """These are to be told, and what they tell of is committed; too many at once are left to the next look."""
        self._names |= dict.fromkeys(islice(names, NAMES_WAITING_MAX - len(self._names)))
        self._news.set()

    def start(self) -> None:
        """Begin to speak."""
        if self._redis is not None:
            self._task = vital.PROCESS.keep(self._speak(), f"telling {self._channel}")

    async def stop(self) -> None:
        """Say what is still to be said, then close the connection."""
        await vital.end([self._task])
        if self._redis is not None:
            while self._names and await self.step():
                pass
            await self._redis.aclose()
        self.hearers = 0

    async def step(self) -> bool:
        """One message; whether anybody hears."""
        assert self._redis is not None, "only who has a Redis speaks"
        told = list(islice(self._names, NAMES_PER_MESSAGE_MAX))
        for name in told:
            del self._names[name]
        try:
            self.hearers = int(await self._redis.publish(self._channel, msgspec.msgpack.encode(told)))
        except Lost as error:
            self.hearers = 0
            log.debug("nothing is told of DAGs", channel=self._channel, error=str(error))
        except Exception:
            self.hearers = 0
            log.exception("nothing is told of DAGs", channel=self._channel)
        return self.is_heard

    async def _speak(self) -> None:
        while True:
            await self.step()
            if self._pause_s:
                await pause(self._pause_s)
            if not self._names:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_S):
                        await self._news.wait()
