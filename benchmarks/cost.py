"""Processor time per item, by who used it."""

from __future__ import annotations

from benchmarks.machine import Busy

SHOWN = ("client", "queue", "dag", "postgres")
# A group that uses less than this beside the largest is not worth a word.
_SHARE_MIN = 0.02


class Cost:
    """Adds up slices. As text: microseconds of processor time per item."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._items = 0

    def add(self, busy: Busy, items: int) -> None:
        """One more slice, in which so many items were done."""
        self._items += items
        for group in busy.groups:
            self._seconds[group] = self._seconds.get(group, 0.0) + busy.seconds(group)

    def us(self, group: str) -> float:
        """Microseconds of one group per item."""
        return self._seconds.get(group, 0.0) / max(self._items, 1) * 1e6

    def __str__(self) -> str:
        largest = max((self.us(group) for group in SHOWN), default=0.0)
        parts = [f"{group} {self.us(group):.3g}" for group in SHOWN if self.us(group) > largest * _SHARE_MIN]
        return f"CPU us/item: {', '.join(parts)}"
