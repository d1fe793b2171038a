"""Processor time and write-ahead log per item."""

from __future__ import annotations

from benchmarks.machine import Busy

SHOWN = ("client", "queue", "dag", "postgres", "valkey", "peer", "redis")
# A group that uses less than this beside the largest is not worth a word.
_SHARE_MIN = 0.02


class Cost:
    """Adds up slices. As text: microseconds of processor time and bytes of log per item."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._items = 0
        self._wal_bytes = 0.0

    def add(self, busy: Busy, items: int, wal_bytes: float = 0.0) -> None:
        """One more slice, in which so many items were done."""
        self._items += items
        self._wal_bytes += wal_bytes
        for group in busy.groups:
            self._seconds[group] = self._seconds.get(group, 0.0) + busy.seconds(group)

    def us(self, group: str) -> float:
        """Microseconds of one group per item."""
        return self._seconds.get(group, 0.0) / max(self._items, 1) * 1e6

    @property
    def wal_bytes(self) -> float:
        """Bytes of write-ahead log per item; 0 where it was not looked at."""
        return self._wal_bytes / max(self._items, 1)

    @property
    def numbers(self) -> dict[str, float]:
        """By group the microseconds per item, and `wal_bytes`."""
        largest = max((self.us(group) for group in SHOWN), default=0.0)
        found = {group: self.us(group) for group in SHOWN if self.us(group) > largest * _SHARE_MIN}
        return found | ({"wal_bytes": self.wal_bytes} if self._wal_bytes else {})

    def __str__(self) -> str:
        parts = [f"{name} {value:.3g}" for name, value in self.numbers.items() if name != "wal_bytes"]
        wal = f"; WAL {self.wal_bytes:,.0f} B/item" if self._wal_bytes else ""
        return f"CPU us/item: {', '.join(parts)}{wal}"
