"""What one topic may deliver next in `app.testing()`: the limits and throttles of the service, in memory."""

from headgate._app.function import Limits


class LocalGate:
    """A bucket of tokens, which is full at first, and the end of a throttle."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._rate = None if limits is None else limits.rate
        self._burst = 0 if limits is None else limits.burst
        self._tokens = float(self._burst)
        self._filled_s = 0.0
        self._slow_until_s = 0.0
        # When the topic is looked at again.
        self.again_s = -1.0

    def throttle(self, until_s: float) -> None:
        """Deliver nothing until then."""
        self._slow_until_s = max(until_s, self._slow_until_s)

    def open_s(self, now_s: float) -> float:
        """When the next item may be delivered: now, or later."""
        open_s = max(now_s, self._slow_until_s)
        if self._rate is None:
            return open_s
        self._tokens = min(self._tokens + (now_s - self._filled_s) * self._rate, self._burst)
        self._filled_s = now_s
        # A billionth is what the time of the loop may lack.
        return open_s if self._tokens >= 1 - 1e-9 else max(open_s, now_s + (1 - self._tokens) / self._rate)

    def take(self) -> None:
        """An item is delivered."""
        if self._rate is not None:
            self._tokens -= 1
