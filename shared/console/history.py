"""The last hour of what a process samples, in memory: a ring of points per series, and marks of what happened.

A point is the mean of what was sampled while it lasted; points begin at whole multiples of their length on the
wall clock, so that those of several processes lie on one another. A series that has told nothing for a whole round
is forgotten. How many there are is bounded; what is over the bound is counted and left out.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shared.clock import Clock
from shared.ids import ShardNo

MARKS_MAX = 500


class SeriesName(NamedTuple):
    """What a line of points is of: a metric of a shard, and of a topic where it is one's."""

    metric: str
    shard: ShardNo
    namespace: str = ""
    topic: str = ""


class Mark(NamedTuple):
    """Something that happened: a start, a drain, a breaker that opened."""

    at_s: float
    kind: str
    shard: ShardNo | None
    text: str


class _Ring:
    __slots__ = ("last", "values")

    def __init__(self, points: int) -> None:
        self.values = array("f", [math.nan]) * points
        self.last = -1


class ShardHistory:
    """Points of `point_s` for `span_s`. Costs four bytes a point of a series."""

    def __init__(self, clock: Clock, *, point_s: float, span_s: float, series_max: int) -> None:
        self._clock = clock
        self.point_s = point_s
        self.points = max(1, round(span_s / point_s))
        self._series_max = series_max
        self._rings: dict[SeriesName, _Ring] = {}
        self.marks: deque[Mark] = deque(maxlen=MARKS_MAX)
        self.left_out = 0

    def mark(self, kind: str, text: str, shard: ShardNo | None = None) -> None:
        """Something happens now."""
        self.marks.append(Mark(self._clock.wall_s(), kind, shard, text))

    def take(self, values: Mapping[SeriesName, float]) -> None:
        """One sample of every series; what a series does not tell is a gap."""
        slot = self.slot_now()
        self.left_out = 0
        for series, value in values.items():
            ring = self._rings.get(series)
            if ring is None:
                if len(self._rings) >= self._series_max and not self._forget(slot):
                    self.left_out += 1
                    continue
                ring = self._rings[series] = _Ring(self.points)
            self._put(ring, slot, value)

    def slot_now(self) -> int:
        """The number of the point that lasts now."""
        return int(self._clock.wall_s() // self.point_s)

    def lines(self) -> Iterator[tuple[SeriesName, int, array[float]]]:
        """Every series with the number of its last point, and its ring: point n is at n modulo its length."""
        for series, ring in self._rings.items():
            yield series, ring.last, ring.values

    def _put(self, ring: _Ring, slot: int, value: float) -> None:
        if slot < ring.last:  # the clock was set back: what was after now is not to be believed
            ring.values = array("f", [math.nan]) * self.points
        elif ring.last >= 0:
            for missed in range(ring.last + 1, min(slot, ring.last + self.points)):
                ring.values[missed % self.points] = math.nan
        ring.last = slot
        ring.values[slot % self.points] = value

    def _forget(self, slot: int) -> bool:
        """Drop what has told nothing for a round; whether anything was."""
        old = [series for series, ring in self._rings.items() if slot - ring.last >= self.points]
        for series in old:
            del self._rings[series]
        return bool(old)
