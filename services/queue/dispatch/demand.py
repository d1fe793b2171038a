"""When somebody last asked for items of each topic, as far as this process has heard: for whoever wonders why
nobody takes an item. Held in memory only; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from services.queue.dispatch.announcements import Announcer
from shared.clock import Clock

TOPICS_MAX: Final = 10_000
# A topic that is asked for many times a second is noted once.
NOTED_S: Final = 0.1


class AskedTopic(Protocol):
    """A topic, and when it was noted last."""

    namespace: str
    topic: str
    noted_s: float


class Asked:
    """Topics that consumers have asked for, here or, by what other processes tell, elsewhere."""

    def __init__(self, clock: Clock, announcer: Announcer) -> None:
        self._clock = clock
        self._announcer = announcer
        self._since_s = clock.monotonic_s()  # of what came before nothing is known
        self._asked_s: dict[tuple[str, str], float] = {}

    def note(self, lines: Iterable[AskedTopic]) -> None:
        """Somebody asks here for items of these."""
        now_s = self._clock.monotonic_s()
        for line in lines:
            if now_s - line.noted_s < NOTED_S:
                continue
            line.noted_s = now_s
            self.heard(line.namespace, line.topic)
            self._announcer.ask(line.namespace, line.topic)

    def heard(self, namespace: str, topic: str) -> None:
        """Somebody asks, here or elsewhere."""
        self._asked_s[namespace, topic] = self._clock.monotonic_s()
        if len(self._asked_s) > TOPICS_MAX:
            self._forget()

    def unasked_s(self, namespace: str, topic: str) -> float:
        """For how long, at least, nobody has asked, as far as is known here."""
        return self._clock.monotonic_s() - self._asked_s.get((namespace, topic), self._since_s)

    def lately(self, namespace: str, within_s: float) -> list[str]:
        """The topics of a namespace that somebody has asked for within so long, as far as is known here."""
        since_s = self._clock.monotonic_s() - within_s
        return [topic for (of, topic), asked_s in self._asked_s.items() if of == namespace and asked_s > since_s]

    def _forget(self) -> None:
        """Drop the half that was asked for longest ago."""
        oldest = sorted(self._asked_s, key=self._asked_s.__getitem__)[: TOPICS_MAX // 2]
        self._since_s = self._asked_s[oldest[-1]]
        for topic in oldest:
            del self._asked_s[topic]
