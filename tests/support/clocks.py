"""A clock that tests move."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is told to go on. Without a `wall`, whoever asks for the time of day is at fault."""

    def __init__(self, now_s: float = 1_000.0, *, wall: bool = False) -> None:
        self.now_s = now_s
        self._wall = wall

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        assert self._wall, "decisions need no wall clock"
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
