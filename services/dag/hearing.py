"""Ends of DAGs that queue processes have applied with acks: who waits for one here is told at once.

A message says no more than that a DAG may have ended. What is told is read from its shard, for all that was named
since the last read of that shard, and only where somebody waits; a message that is lost, or a shard that does not
answer, is made up for by the look at all that is watched (`watching`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redis.asyncio import Redis

from services.dag.context import Context
from shared import endings, ids
from shared.errors import ServiceError
from shared.redis import connect, listen

_DAGS_PER_READ = 1_000


class Hearing:
    """Listens, and reads what somebody waits for."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._channel = endings.channel(settings.redis_prefix)
        self._ear: Redis | None = connect(settings.redis_url, patient=True) if settings.redis_url else None
        self._listening: asyncio.Task[None] | None = None
        self._named: dict[int, set[str]] = {}
        self._reads: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to listen."""
        if self._ear is not None:
            self._listening = asyncio.create_task(listen(self._ear, self._channel, self.heard))

    async def stop(self) -> None:
        """Stop listening and close the connection."""
        tasks = [*self._reads.values(), *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ear is not None:
            await self._ear.aclose()

    def heard(self, data: bytes) -> None:
        """Take in one message."""
        for dag_id in endings.read(data):
            number = ids.shard_of(dag_id)
            if self._context.watches.has(number, dag_id):
                self._named.setdefault(number, set()).add(dag_id)
                if number not in self._reads:
                    self._reads[number] = asyncio.create_task(self._read(number))

    async def _read(self, number: int) -> None:
        try:
            while named := self._named.pop(number, None):
                shard = self._context.shards.get(number)
                if shard is None:
                    continue
                dag_ids = list(named)
                for at in range(0, len(dag_ids), _DAGS_PER_READ):
                    with suppress(ServiceError):
                        await self._context.watches.read(shard, dag_ids[at : at + _DAGS_PER_READ])
        finally:
            del self._reads[number]
