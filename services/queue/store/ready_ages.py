"""How long the oldest ready item of a topic has been ready.

The index of ready items has them by priority and time, so it takes one probe for each priority that a topic uses.
While a snapshot is held open such a probe would walk over all that was served since (see `keys.scan_floor`).
So it begins `MARGIN` before what the last one found, and every `WHOLE_S` at the beginning all the same.

In a lane `deliver_at` is a place in an order and no time. Lanes take turns, so the first of each lies close behind
what is served: of the first `LANE_ROWS_MAX` rows the one that has been ready longest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from services.queue.model import EARLIEST, TopicId
from services.queue.store.names import SQL
from shared.lately import Lately
from shared.shards.shard_map import Shard

# A transaction that is still open may bring a row with a time of a while ago.
MARGIN = timedelta(seconds=10)
WHOLE_S = 900.0
LANE_ROWS_MAX = 1_000
PRIORITIES_MAX = 64
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


class _Probe(NamedTuple):
    """Where to look for ready items of a topic: from one priority to another, none before `floor`."""

    topic_id: TopicId
    first: int
    last: int
    floor: datetime


class ReadyAges:
    """Of one shard's topics, of which `topics_max` are remembered."""

    def __init__(self, shard: Shard, topics_max: int, monotonic_s: Callable[[], float]) -> None:
        self._pool = shard.pool
        self._monotonic_s = monotonic_s
        self._floors: Lately[int, tuple[float, dict[int, datetime]]] = Lately(topics_max)
        shard.history.listeners.append(self._floors.clear)

    async def read(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, float]:
        """Seconds, of each of these topics that has something ready."""
        known = {topic_id: self._known(topic_id) for topic_id in topic_ids}
        if not known:
            return {}
        probes = [probe for topic_id, (_, floors) in known.items() for probe in _probes(topic_id, floors)]
        columns = zip(*probes, strict=True)
        names = ("topic_ids", "firsts", "lasts", "floors")
        rows = await self._pool.fetch(
            SQL.oldest_ready, **dict(zip(names, columns, strict=True)), lane_rows_max=LANE_ROWS_MAX
        )
        ages: dict[TopicId, float] = {}
        found: dict[tuple[int, int], datetime] = {}
        for topic_id, priority, deliver_at, in_lanes, at, age_s in rows:
            ages[topic_id] = max(age_s, ages.get(topic_id, 0.0))
            found[topic_id, priority] = EARLIEST if in_lanes else deliver_at - MARGIN
            known[topic_id][1].setdefault(priority, EARLIEST)
            now = at
        for topic_id, (whole_s, floors) in known.items():
            if rows and len(floors) <= PRIORITIES_MAX:
                # Where nothing was found, nothing is from before now.
                kept = {priority: found.get((topic_id, priority), now - MARGIN) for priority in floors}
                self._floors[topic_id] = (whole_s, kept)
        return ages

    def _known(self, topic_id: TopicId) -> tuple[float, dict[int, datetime]]:
        """When the topic was looked at from the beginning, and the floors that it has by priority."""
        now_s = self._monotonic_s()
        whole_s, floors = self._floors.get(topic_id) or (now_s, {})
        return (whole_s, dict(floors)) if now_s - whole_s < WHOLE_S else (now_s, {})


def _probes(topic_id: TopicId, floors: dict[int, datetime]) -> Iterator[_Probe]:
    """One for each priority that is known, and one for all that lie between two."""
    first = _LOWEST
    for priority in sorted(floors):
        if first < priority:
            yield _Probe(topic_id, first, priority - 1, EARLIEST)
        yield _Probe(topic_id, priority, priority, floors[priority])
        first = priority + 1
    if first <= _HIGHEST:
        yield _Probe(topic_id, first, _HIGHEST, EARLIEST)
