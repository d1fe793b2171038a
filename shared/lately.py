"""A mapping that remembers what was asked for lately, and never more than so much."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lately(Generic[K, V]):
    """Up to `entries_max` entries, in two halves: when the younger is full, what nobody asked for since it was
    begun is forgotten. Finding an entry costs what it costs in a dict."""

    def __init__(self, entries_max: int) -> None:
        self._half_max = max(entries_max // 2, 1)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: K) -> V | None:
        """What is remembered of a key, or None."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self[key] = found
        return found

    def __setitem__(self, key: K, value: V) -> None:
        if len(self._young) >= self._half_max and key not in self._young:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def pop(self, key: K) -> V | None:
        """Forget a key; what was remembered of it."""
        old = self._old.pop(key, None)
        return self._young.pop(key, old)

    def clear(self) -> None:
        """Forget everything."""
        self._young.clear()
        self._old.clear()
