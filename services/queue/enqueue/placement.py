"""Where items go that may live anywhere: a topic has few shards, more as its rate grows.

Every shard that a topic uses costs each of its consumers a look, and splits its flushes, claims and acks into
smaller ones. So a topic begins on one shard, chosen by its name, which spreads topics over all shards; it takes
one more for every `topic_shard_rate_max` items a second, up to `topic_shards_max`, and gives them back one a
second once it is calm. A shard that is to be avoided (draining, failing, behind) is passed over for the next.

A process places on the shards that it owns, whose keys it hands out, while it owns any that takes items. The
rates are its own, and forgetting them is harmless: living items stay where they are and
consumers look everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from services.queue.settings import QueueSettings
from shared.clock import Clock
from shared.ids import ShardNo

_WINDOW_S = 1.0
_TOPICS_MAX = 20_000
_BUSY_S = 60.0


class _Spread:
    """One topic's shards: where its ring begins, how many it uses, and how fast it was lately."""

    __slots__ = ("begun_s", "first", "items", "turn", "width")

    def __init__(self, first: int, begun_s: float) -> None:
        self.first = first
        self.begun_s = begun_s
        self.items = 0
        self.width = 1
        self.turn = 0

    def is_busy(self, now_s: float) -> bool:
        """Whether it uses several shards, or did a moment ago."""
        return self.width > 1 and now_s - self.begun_s < _BUSY_S


class Placement:
    """Chooses the shard of every enqueue call that names none."""

    def __init__(
        self,
        shards: Sequence[ShardNo],
        settings: QueueSettings,
        clock: Clock,
        *,
        avoids: Callable[[ShardNo], bool],
        owns: Callable[[ShardNo], bool],
    ) -> None:
        self.avoids = avoids
        self.owns = owns
        self._shards = sorted(shards)
        self._own = self._shards
        self._looked_s = float("-inf")
        self._settings = settings
        self._clock = clock
        self._spreads: dict[tuple[str, str], _Spread] = {}

    def join(self, shard: ShardNo) -> None:
        """There is one more shard; topics that are on others stay there."""
        self._shards = sorted({*self._shards, shard})
        self._looked_s = float("-inf")

    def drop(self, shard: ShardNo) -> None:
        """A shard left the map."""
        self._shards = [number for number in self._shards if number != shard]
        self._looked_s = float("-inf")

    def choose(self, namespace: str, topic: str, items: int, *, but: ShardNo | None = None) -> ShardNo:
        """The shard for a call of that many items; calls of one topic take turns on its shards.

        `but` is one that has just failed: it is chosen only where no other may be.
        """
        now_s = self._clock.monotonic_s()
        spread = self._spreads.get((namespace, topic)) or self._begin(namespace, topic, now_s)
        if now_s - spread.begun_s >= _WINDOW_S:
            self._measure(spread, now_s)
        spread.items += items
        spread.turn += 1
        if now_s - self._looked_s >= _WINDOW_S:
            self._looked_s = now_s
            self._own = [shard for shard in self._shards if self.owns(shard)] or self._shards
        place = spread.first + spread.turn % min(spread.width, len(self._own))
        shard = self._own[place % len(self._own)]
        if shard != but and not self.avoids(shard):
            return shard
        for ring in (self._own, self._shards):
            for step in range(len(ring)):
                shard = ring[(place + step) % len(ring)]
                if shard != but and not self.avoids(shard):
                    return shard
        # All are to be avoided: the call will say so.
        return but if but is not None else self._own[place % len(self._own)]

    def width(self, namespace: str, topic: str) -> int:
        """How many shards a topic uses now."""
        spread = self._spreads.get((namespace, topic))
        return 1 if spread is None else spread.width

    def _begin(self, namespace: str, topic: str, now_s: float) -> _Spread:
        if len(self._spreads) >= _TOPICS_MAX:
            busy = {key: kept for key, kept in self._spreads.items() if kept.is_busy(now_s)}
            self._spreads = busy if len(busy) < _TOPICS_MAX else {}
        first = zlib.crc32(f"{namespace}\0{topic}".encode())
        spread = self._spreads[namespace, topic] = _Spread(first, now_s)
        return spread

    def _measure(self, spread: _Spread, now_s: float) -> None:
        rate = spread.items / (now_s - spread.begun_s)
        wanted = 1 + int(rate / self._settings.topic_shard_rate_max)
        widest = min(self._settings.topic_shards_max, len(self._shards))
        spread.width = min(max(wanted, spread.width - 1), widest)
        spread.items, spread.begun_s = 0, now_s
