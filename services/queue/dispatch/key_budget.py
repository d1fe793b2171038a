"""How many keys one process keeps ahead, of all topics together.

Each topic's buffer has its own limit; ten thousand topics that are asked for once would still fill the memory.
"""

from __future__ import annotations

from collections.abc import Collection

from services.queue.dispatch.direct_handoff import Line

# They are counted again when that part of the limit may have been added.
_COUNT_PARTS = 8


class KeptKeys:
    """Counts what the lines of a process gain, and makes them let go of what is too much."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._gained = 0

    def gain(self, keys: int, lines: Collection[Line]) -> None:
        """A line has gained keys. Beyond the limit, those asked for longest ago let go of theirs."""
        self._gained += keys
        if self._gained * _COUNT_PARTS < self._keys_max:
            return
        self._gained = 0
        kept = sum([len(line.buffer) for line in lines])
        if kept <= self._keys_max:
            return
        for line in sorted(lines, key=lambda line: line.used_s):
            if kept * 2 <= self._keys_max:
                return
            if not line.calls:
                kept -= len(line.buffer)
                line.buffer.clear()
