"""Topics that have held nothing for long are deleted, so that a topic for each job, say, leaves nothing behind.

A process writes items under a number that it remembers, and its transaction may see the topic as it was a while
ago. So a topic is deleted in two steps. First it is marked: a statement that takes something in under its number
looks at the topic, and takes in nothing where it sees the mark; who wants to use the topic takes the mark away
first. Once every transaction has ended that ran when the mark was there to be seen, all others do see it. Then the
topic is deleted if it still has the same mark and holds nothing. A new topic of its name has another number.

What waits in between is kept in memory: a process that ends leaves marked topics, which any other goes on with.
"""

from __future__ import annotations

from typing import NamedTuple

from services.queue.model import TopicId
from services.queue.operations.pace import Pace
from services.queue.settings import QueueSettings
from services.queue.store import topics
from services.queue.store.shard_store import Store
from shared.log import log

IDLE_PAUSE_S = 15.0
WAIT_PAUSE_S = 1.0


class Marked(NamedTuple):
    """Topics by number, their marks, and the transactions that may not have seen these and have not ended yet."""

    topic_ids: list[TopicId]
    marks: list[str]
    awaited: frozenset[str]


class EmptyTopics:
    """The duty of one shard. Any number of processes may do it at once."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self._store = store
        self._age_s = settings.topic_retention_s
        self._looks = Pace(settings.chunk_items_max)
        self._deletes = Pace(settings.chunk_items_max)
        self._looked_to = 0
        self._marked: Marked | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no topic is marked, as far as the last step saw."""
        return self._marked is None

    def pause_s(self) -> float:
        """How long a step that did nothing is followed by none."""
        return IDLE_PAUSE_S if self.is_idle else WAIT_PAUSE_S

    async def step(self) -> int:
        """Mark some topics, or see to the end of those that are marked; how many were deleted."""
        if self._marked is None:
            await self._looks.step(self._mark)
            self._marked = await self._read_marked()
            return 0
        if self._marked.awaited:
            running = await self._running()
            self._marked = self._marked._replace(awaited=self._marked.awaited & running)
            if self._marked.awaited:
                return 0
        return await self._deletes.step(self._delete)

    async def _mark(self, limit: int) -> int:
        retired = await topics.retire_topics(self._store.pool, self._looked_to, self._age_s, limit)
        self._looked_to = retired.last_topic_id or 0
        return retired.looked

    async def _read_marked(self) -> Marked | None:
        """All that are marked, by whomever; the transactions are looked at after that."""
        found = await topics.retiring_topics(self._store.pool, self._looks.rows)
        if not found:
            return None
        topic_ids, marks = [topic.topic_id for topic in found], [topic.mark for topic in found]
        return Marked(topic_ids, marks, await self._running())

    async def _running(self) -> frozenset[str]:
        return await topics.running_transactions(self._store.pool)

    async def _delete(self, limit: int) -> int:
        assert self._marked is not None, "there is something to delete"
        topic_ids, marks, awaited = self._marked
        numbers = await topics.delete_topics(self._store.pool, topic_ids[:limit], marks[:limit])
        rest = Marked(topic_ids[limit:], marks[limit:], awaited)
        self._marked = rest if rest.topic_ids else None
        self._store.names.forget(numbers)
        if numbers:
            log.info("empty topics were deleted", shard=self._store.number, topics=len(numbers))
        return min(len(topic_ids), limit)
