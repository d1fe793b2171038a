"""What other processes have done to DAGs: who waits here is told at once.

A message says no more than that a DAG may have ended, that a run may have news, or that a DAG with a tag may have
changed. What is told is
read from its shard, for all that was named since the last read of that shard, and only where somebody waits; a
message that is lost, or a shard that does not answer, is made up for by the look at all that is watched
(`watching`). Changes are listened to only while there are streams of them: that is how the others know whether to
tell.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redis.asyncio import Redis

from services.dag.run.context import Context
from shared import dag_notify, ids, vital
from shared.errors import ServiceError
from shared.ids import ShardNo
from shared.redis import connect, listen

_DAGS_PER_READ = 1_000


class QueueEvents:
    """Listens, and reads what somebody waits for."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._prefix = settings.redis_prefix
        self._ear: Redis | None = connect(settings.redis_url, patient=True) if settings.redis_url else None
        self._listening: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._named: dict[ShardNo, set[str]] = {}
        self._reads: dict[ShardNo, asyncio.Task[None]] = {}
        context.watches.stream_listeners.append(self._follow)

    def start(self) -> None:
        """Begin to listen."""
        if self._ear is not None:
            channel = dag_notify.ended_channel(self._prefix)
            self._listening = vital.PROCESS.keep(listen(self._ear, channel, self.heard_of_ends), "ends heard")
            self._context.news.start()

    async def stop(self) -> None:
        """Stop listening and close the connection."""
        tasks = [*self._reads.values(), self._listening, self._following]
        self._listening = None
        await vital.end(tasks)
        await self._context.news.stop()
        if self._ear is not None:
            await self._ear.aclose()

    def heard_of_ends(self, data: bytes) -> None:
        """Take in a message that names DAGs and runs."""
        watches = self._context.watches
        for dag_id in dag_notify.read_runs(data):
            watches.told(ids.shard_of(dag_id), dag_id)
        for dag_id in dag_notify.read_ids(data):
            if watches.has(ids.shard_of(dag_id), dag_id):
                self._look_at(dag_id)

    def heard_of_changes(self, data: bytes) -> None:
        """Take in a message that names DAG tags."""
        for dag_id in self._context.watches.streamed(dag_notify.read(data)):
            self._look_at(dag_id)

    def _follow(self, are_streams: bool) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if are_streams and self._ear is not None and self._listening is not None:
            channel = dag_notify.changed_channel(self._prefix)
            self._following = vital.PROCESS.keep(
                listen(self._ear, channel, self.heard_of_changes), "changes heard"
            )

    def _look_at(self, dag_id: str) -> None:
        number = ids.shard_of(dag_id)
        self._named.setdefault(number, set()).add(dag_id)
        if number not in self._reads:
            self._reads[number] = asyncio.create_task(self._read(number))

    async def _read(self, number: ShardNo) -> None:
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
