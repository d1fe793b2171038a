"""DAGs that have ended by an ack, as queue processes tell DAG processes of them over Redis.

A message names the DAGs of a flush, or of the flushes during the message before. It only hurries who waits for
them: losing one costs the time to the next look. Who acks ends a DAG only while somebody hears of it, which each
message says, and one without DAGs once a second: so without Redis, or where no DAG process listens, a DAG's end
goes to the DAG service, which tells its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from redis.asyncio import Redis

from shared import ids
from shared.log import log
from shared.redis import Lost, connect

PROBE_S = 1.0
DAGS_PER_MESSAGE_MAX = 1_000
DAGS_WAITING_MAX = 10_000

_decoder = msgspec.msgpack.Decoder(list[str])


def channel(prefix: str) -> str:
    """Where the processes of one installation meet."""
    return f"{prefix}:dag:ended"


def read(data: bytes) -> list[str]:
    """The ids of the DAGs that a message names; what is none is left out."""
    try:
        found = map(ids.canonical, _decoder.decode(data))
    except msgspec.MsgspecError:
        return []
    return [dag_id for dag_id in found if dag_id is not None]


class Endings:
    """Tells of ends. `is_heard`: the last message, at most about a second ago, had somebody to hear it."""

    def __init__(self, url: str | None, prefix: str) -> None:
        self._redis: Redis | None = connect(url) if url else None
        self._channel = channel(prefix)
        self._ended: list[str] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_heard = False

    def tell(self, dag_ids: Sequence[str]) -> None:
        """These have ended, and that is committed; too many at once are left to the next look."""
        self._ended.extend(dag_ids[: DAGS_WAITING_MAX - len(self._ended)])
        self._news.set()

    def start(self) -> None:
        """Begin to speak."""
        if self._redis is not None:
            self._task = asyncio.create_task(self._speak())

    async def stop(self) -> None:
        """Say what is still to be said, then close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._redis is not None:
            while self._ended and await self.step():
                pass
            await self._redis.aclose()
        self.is_heard = False

    async def step(self) -> bool:
        """One message; whether anybody hears."""
        assert self._redis is not None, "only who has a Redis speaks"
        told, self._ended = self._ended[:DAGS_PER_MESSAGE_MAX], self._ended[DAGS_PER_MESSAGE_MAX:]
        try:
            self.is_heard = int(await self._redis.publish(self._channel, msgspec.msgpack.encode(told))) > 0
        except Lost as error:
            self.is_heard = False
            log.debug("ends of DAGs are not told", error=str(error))
        return self.is_heard

    async def _speak(self) -> None:
        while True:
            await self.step()
            if not self._ended:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_S):
                        await self._news.wait()
