"""Fairness inside a topic: items that share a `fairness_key` are a lane, and lanes take turns.

An item of a lane gets its place in the order when it becomes deliverable, from `lane_places` in the database:
one behind the last of its lane, but not before the next round (start-time fair queueing). That place is its
`deliver_at`; so waiting, peeking and claiming are what they are for every item, and a topic in which nobody
uses keys pays nothing. Lanes are per priority; items without a key are one lane, as soon as there are others.

What this bounds, within one priority of a topic: n lanes that have items waiting get a share of 1/n each, to
within two items; a lane that is new, or has items again, waits for one round, and gets no more than its share for
the time that it had none. With several shards what is being served is known about a second late, so such a lane
may be ahead by a second of its share; and a lane whose items lie on k shards may get up to k turns a round. Calls
are spread over the shards, so lanes of many calls get equal shares.

The loop here keeps what the places are counted from the same on all shards, drops lanes that have nothing
waiting, and takes items without a key into their lane.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.settings import QueueSettings
from services.queue.store import topics
from services.queue.store.shard_store import Store, living
from shared.errors import ShardUnavailable
from shared.ids import ShardNo

NEVER = datetime(9999, 12, 31, tzinfo=UTC)

# A namespace, a topic and a priority: what has a clock of its own.
Course = tuple[str, str, int]


class FairnessKeys:
    """The lanes of all shards; any number of processes may look after them at once."""

    def __init__(self, stores: dict[ShardNo, Store], dispatch: Dispatch, settings: QueueSettings) -> None:
        self._stores = stores
        self._dispatch = dispatch
        self._settings = settings

    async def step(self) -> int:
        """Bring the clocks of all shards together; 0, since nothing is left for a next step at once."""
        heads: dict[Course, list[datetime]] = {}
        stores = living(self._stores)
        answers = await asyncio.gather(*map(self._heads, stores), return_exceptions=True)
        there: list[Store] = []
        for store, answer in zip(stores, answers, strict=True):
            if isinstance(answer, ShardUnavailable):
                continue
            if isinstance(answer, BaseException):
                raise answer
            there.append(store)
            for course, head in answer.items():
                heads.setdefault(course, [])
                if head is not None:
                    heads[course].append(head)
        for course, found in heads.items():
            self._dispatch.takes_turns(course[0], course[1])
            # While a shard is away its head is not known: nothing is reset that it may still count from.
            if found or len(there) == len(stores):
                await asyncio.gather(*(self._set(store, course, min(found, default=None)) for store in there))
        return 0

    async def _heads(self, store: Store) -> dict[Course, datetime | None]:
        found = await topics.lane_heads(store.pool)
        if not found:
            return {}
        store.has_lanes = True
        names = await store.names.name_of({lane.topic_id for lane in found})
        return {(*names[lane.topic_id], lane.priority): lane.head for lane in found if lane.topic_id in names}

    async def _set(self, store: Store, course: Course, head: datetime | None) -> None:
        namespace, topic, priority = course
        ref = (await store.names.make([(namespace, topic)])).get((namespace, topic))
        if ref is None:
            return
        pool, topic_id, limit = store.pool, ref.topic_id, self._settings.chunk_items_max
        if head is not None and not await topics.set_lane_clock(
            pool, topic_id, priority, head, is_shared=len(living(self._stores)) > 1
        ):
            store.names.forget([topic_id])  # deleted; the next round makes it anew
            return
        await topics.drop_lanes(pool, topic_id, priority, NEVER if head is None else head, limit)
        if head is None:
            await topics.drop_lane_clock(pool, topic_id, priority)
            return
        self._dispatch.ready(store.number, await topics.adopt_strays(pool, topic_id, priority, head, limit))
