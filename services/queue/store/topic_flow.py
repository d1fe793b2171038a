"""How many items of each topic went in, went out and were acked here since somebody last looked, in memory."""

from __future__ import annotations

from typing import Final, NamedTuple

from services.queue.model import TopicId

# Between two looks so many topics are told apart; what is of others is not counted.
TOPICS_MAX: Final = 10_000


class Moved(NamedTuple):
    """Items of one topic that were taken in, that were handed out, and that were acked."""

    taken: int
    handed: int
    acked: int


class TopicFlow:
    """Counts of one shard. A call costs a few hundred nanoseconds for each of its topics."""

    def __init__(self) -> None:
        self._taken: dict[TopicId, int] = {}
        self._handed: dict[TopicId, int] = {}
        self._acked: dict[TopicId, int] = {}

    def took(self, topic_id: TopicId, items: int) -> None:
        """So many were taken in."""
        _add(self._taken, topic_id, items)

    def gave(self, topic_id: TopicId, items: int) -> None:
        """So many were handed out."""
        _add(self._handed, topic_id, items)

    def acked(self, topic_id: TopicId, items: int) -> None:
        """So many were acked."""
        _add(self._acked, topic_id, items)

    def drain(self) -> dict[TopicId, Moved]:
        """What was counted, that of which most moved first; counting begins anew."""
        taken, self._taken = self._taken, {}
        handed, self._handed = self._handed, {}
        acked, self._acked = self._acked, {}
        moved = {
            number: Moved(taken.get(number, 0), handed.get(number, 0), acked.get(number, 0))
            for number in {**taken, **handed, **acked}
        }
        return dict(sorted(moved.items(), key=lambda pair: -sum(pair[1])))


def _add(counts: dict[TopicId, int], topic_id: TopicId, items: int) -> None:
    before = counts.get(topic_id)
    if before is not None:
        counts[topic_id] = before + items
    elif len(counts) < TOPICS_MAX:
        counts[topic_id] = items
