"""Shards of which nothing is handed out for now: they refused a claim a moment ago, or are held."""

from __future__ import annotations

from shared.clock import Clock
from shared.ids import ShardNo


class Resting:
    """Which shards rest, by number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[ShardNo, float] = {}
        self.held: set[ShardNo] = set()

    def __call__(self, shard: ShardNo) -> bool:
        """Whether a shard rests now."""
        if shard in self.held:
            return True
        until_s = self._until_s.get(shard)
        if until_s is not None and self._clock.monotonic_s() >= until_s:
            del self._until_s[shard]
            return False
        return until_s is not None

    def now(self) -> list[ShardNo]:
        """The shards that rest now."""
        if not self.held and not self._until_s:
            return []  # mostly, and each call asks
        return [shard for shard in {*self.held, *self._until_s} if self(shard)]

    def rest(self, shard: ShardNo, rest_s: float) -> None:
        """Let a shard rest for so long from now."""
        self._until_s[shard] = self._clock.monotonic_s() + rest_s
