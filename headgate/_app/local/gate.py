"""What topics may deliver next in `app.testing()`: the limits and throttles of the service, in memory."""

import math
from collections.abc import Mapping

from headgate._app.function import Limits


class LocalGate:
    """A bucket of tokens, which is full at first, room for some at a time, and the end of a throttle."""

    def __init__(self, rate: float | None = None, burst: int = 1, concurrency: int | None = None) -> None:
        self._rate, self._burst, self._concurrency = rate, burst, concurrency
        self._tokens = float(burst)
        self._filled_s = 0.0
        self._slow_until_s = 0.0
        self._running = 0

    def throttle(self, until_s: float) -> None:
        """Deliver nothing until then."""
        self._slow_until_s = max(until_s, self._slow_until_s)

    def open_s(self, now_s: float) -> float:
        """When the next item may be delivered: now, later, or (infinity) once another has ended."""
        if self._concurrency is not None and self._running >= self._concurrency:
            return math.inf
        open_s = max(now_s, self._slow_until_s)
        if self._rate is None:
            return open_s
        self._tokens = min(self._tokens + (now_s - self._filled_s) * self._rate, self._burst)
        self._filled_s = now_s
        # A billionth is what the time of the loop may lack.
        return open_s if self._tokens >= 1 - 1e-9 else max(open_s, now_s + (1 - self._tokens) / self._rate)

    def take(self) -> None:
        """An item is delivered."""
        self._running += 1
        if self._rate is not None:
            self._tokens -= 1

    def end(self) -> None:
        """It has ended."""
        self._running -= 1


class LocalGates:
    """The gates of topics, and of fairness keys of them."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = limits
        self._gates: dict[tuple[str, str], LocalGate] = {}
        # When topics are looked at again.
        self._again: dict[str, float] = {}

    def of(self, topic: str, key: str | None) -> list[LocalGate]:
        """Those that an item goes through."""
        return [self._gate(topic, name) for name in (("", key) if key else ("",))]

    def open_s(self, topic: str, key: str | None, now_s: float) -> float:
        """When an item may be delivered."""
        return max(gate.open_s(now_s) for gate in self.of(topic, key))

    def is_news(self, topic: str, again_s: float, now_s: float) -> bool:
        """Whether the topic is not yet to be looked at then."""
        if again_s == math.inf or now_s < self._again.get(topic, 0.0) <= again_s:
            return False
        self._again[topic] = again_s
        return True

    def throttle(self, topic: str, key: str | None, until_s: float) -> None:
        """Deliver nothing of a topic, or of a key of it, until then."""
        self._gate(topic, key or "").throttle(until_s)

    def _gate(self, topic: str, key: str) -> LocalGate:
        found = self._gates.get((topic, key))
        if found is None:
            limits = self._limits.get(topic, Limits())
            of_key = limits.key_rate, limits.key_burst, limits.key_concurrency
            found = LocalGate(*of_key) if key else LocalGate(limits.rate, limits.burst, limits.concurrency)
            self._gates[topic, key] = found
        return found
