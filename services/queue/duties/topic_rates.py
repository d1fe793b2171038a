"""Rates of single topics, of those of which most moves: as counters for `/metrics`, and for the last hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from services.queue.model import TopicId
from services.queue.store.topic_flow import Moved
from shared.clock import Clock
from shared.console.history import SeriesName
from shared.ids import ShardNo
from shared.metrics import TOPIC_ACKED, TOPIC_DEQUEUED, TOPIC_ENQUEUED

Pair = tuple[str, str]

# What is counted of a topic, in the order of `Moved`: its name among the rates, and its counter.
_COUNTED: Final = (
    ("enqueued_per_s", TOPIC_ENQUEUED),
    ("dequeued_per_s", TOPIC_DEQUEUED),
    ("acked_per_s", TOPIC_ACKED),
)
_RESTS: Final = (0.0,) * len(_COUNTED)


class TopicRates:
    """What this process has moved of topics, shard by shard, of up to `topics_max` topics of each.

    A topic that comes when there is no room takes the place of the one that has not moved for longest; while all
    have moved since the last look, it waits.
    """

    def __init__(self, topics_max: int, clock: Clock) -> None:
        self._topics_max = topics_max
        self._clock = clock
        # Of each shard, items a second at the last look; those that moved last in the end.
        self._rates: dict[ShardNo, dict[Pair, tuple[float, ...]]] = {}
        self._looked_s: dict[ShardNo, float] = {}

    def take(self, shard: ShardNo, moved: Mapping[TopicId, Moved], names: Mapping[TopicId, Pair]) -> None:
        """One look at what has moved on a shard since the last one, most first."""
        now_s = self._clock.monotonic_s()
        span_s = now_s - self._looked_s.get(shard, now_s)
        self._looked_s[shard] = now_s
        known = dict.fromkeys(self._rates.get(shard, {}), _RESTS)
        resting = iter([pair for pair in known if pair not in {names.get(number) for number in moved}])
        for number, counts in moved.items():
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
            known[pair] = tuple(count / span_s for count in counts) if span_s > 0 else _RESTS
            for (_, counter), count in zip(_COUNTED, counts, strict=True):
                counter.labels(*pair, str(shard)).inc(count)
        self._rates[shard] = known

    def forget(self, shard: ShardNo) -> None:
        """The shard is not this process's to tell of any more."""
        for pair in self._rates.pop(shard, {}):
            self._unsay(shard, pair)
        self._looked_s.pop(shard, None)

    def latest(self) -> Iterator[tuple[SeriesName, float]]:
        """What the last looks have found."""
        for shard, rates in self._rates.items():
            for pair, found in rates.items():
                for (name, _), per_s in zip(_COUNTED, found, strict=True):
                    yield SeriesName(name, shard, *pair), per_s

    def _unsay(self, shard: ShardNo, pair: Pair) -> None:
        for _, counter in _COUNTED:
            counter.remove_by_labels({"namespace": pair[0], "topic": pair[1], "shard": str(shard)})
