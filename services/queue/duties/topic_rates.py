"""Rates of single topics, of those of which most moves: as counters for `/metrics`, and for the last hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from services.queue.model import TopicId
from services.queue.store.topic_flow import Moved
from shared.clock import Clock
from shared.console.history import SeriesName
from shared.ids import ShardNo
from shared.metrics import TOPIC_DEQUEUED, TOPIC_ENQUEUED

Pair = tuple[str, str]


class TopicRates:
    """What this process has moved of topics, shard by shard, of up to `topics_max` topics of each.

    A topic that comes when there is no room takes the place of the one that has not moved for longest; while all
    have moved since the last look, it waits.
    """

    def __init__(self, topics_max: int, clock: Clock) -> None:
        self._topics_max = topics_max
        self._clock = clock
        # Of each shard, items a second at the last look; those that moved last in the end.
        self._rates: dict[ShardNo, dict[Pair, tuple[float, float]]] = {}
        self._looked_s: dict[ShardNo, float] = {}

    def take(self, shard: ShardNo, moved: Mapping[TopicId, Moved], names: Mapping[TopicId, Pair]) -> None:
        """One look at what has moved on a shard since the last one, most first."""
        now_s = self._clock.monotonic_s()
        span_s = now_s - self._looked_s.get(shard, now_s)
        self._looked_s[shard] = now_s
        known = dict.fromkeys(self._rates.get(shard, {}), (0.0, 0.0))
        resting = iter([pair for pair in known if pair not in {names.get(number) for number in moved}])
        for number, (taken, handed) in moved.items():
            pair = names.get(number)
            if pair is None:
                continue
            if pair not in known and len(known) >= self._topics_max:
                longest = next(resting, None)
                if longest is None:
                    continue
                del known[longest]
                self._unsay(shard, longest)
            known.pop(pair, None)
            known[pair] = (taken / span_s, handed / span_s) if span_s > 0 else (0.0, 0.0)
            TOPIC_ENQUEUED.labels(*pair, str(shard)).inc(taken)
            TOPIC_DEQUEUED.labels(*pair, str(shard)).inc(handed)
        self._rates[shard] = known

    def forget(self, shard: ShardNo) -> None:
        """The shard is not this process's to tell of any more."""
        for pair in self._rates.pop(shard, {}):
            self._unsay(shard, pair)
        self._looked_s.pop(shard, None)

    def latest(self) -> Iterator[tuple[SeriesName, float]]:
        """What the last looks have found."""
        for shard, rates in self._rates.items():
            for pair, (taken_per_s, handed_per_s) in rates.items():
                yield SeriesName("enqueued_per_s", shard, *pair), taken_per_s
                yield SeriesName("dequeued_per_s", shard, *pair), handed_per_s

    def _unsay(self, shard: ShardNo, pair: Pair) -> None:
        for counter in (TOPIC_ENQUEUED, TOPIC_DEQUEUED):
            counter.remove_by_labels({"namespace": pair[0], "topic": pair[1], "shard": str(shard)})
