"""What dispatch tells other processes: keys that became ready here, and which topics are wanted here.

Nothing is decided by it. Who misses an announcement finds the same at its next look at the shards.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.queue.model import Key
from shared.ids import ShardNo


class Announcer:
    """Tells nobody, since there are no other processes: whoever has a Redis overrides these."""

    def tell(self, namespace: str, topic: str, shard: ShardNo, keys: Sequence[Key]) -> None:
        """Keys of a topic became ready."""

    def want(self, namespace: str, topic: str) -> None:
        """A call waits here for items of a topic."""

    def ask(self, namespace: str, topic: str) -> None:
        """A call asks here for items of a topic, whether it waits or not."""

    def tell_change(self, namespace: str, topic: str) -> None:
        """A topic was paused, resumed or purged."""
