"""A clock that tests move."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is told to go on."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
