"""The last hour of what a process samples, in memory: points by series, and marks of what happened.

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
# What is kept together of a series: five minutes, at a point each 5 s.
_PIECE_POINTS = 60
_UNTOLD = array("f", [math.nan]) * _PIECE_POINTS


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


class Points:
    """The last `points` points of a series; what was not told is not a number."""

    __slots__ = ("_pieces", "_points", "last")

    def __init__(self, points: int) -> None:
        self._points = points
        # A piece is at its number modulo how many there are. Most series rest for hours: a piece that is over, and
        # in which nothing changed, is one number.
        self._pieces: list[array[float] | float] = [math.nan] * (points // _PIECE_POINTS + 2)
        self.last = -1

    def put(self, slot: int, value: float) -> None:
        """The point of this number is that, and the last one."""
        number, last_number = slot // _PIECE_POINTS, self.last // _PIECE_POINTS
        if slot < self.last or self.last < 0:  # what was after a clock that was set back is not to be believed
            self._pieces = [math.nan] * len(self._pieces)
            self._begin(number)
        elif number > last_number:
            self._end(last_number)
            for missed in range(max(last_number + 1, number - len(self._pieces) + 1), number):
                self._pieces[missed % len(self._pieces)] = math.nan
            self._begin(number)
        piece = self._pieces[number % len(self._pieces)]
        assert isinstance(piece, array)
        piece[slot % _PIECE_POINTS] = value
        self.last = slot

    def at(self, slot: int) -> float:
        """The point of this number."""
        if not self.last - self._points < slot <= self.last:
            return math.nan
        piece = self._pieces[slot // _PIECE_POINTS % len(self._pieces)]
        return piece[slot % _PIECE_POINTS] if isinstance(piece, array) else piece

    def _begin(self, number: int) -> None:
        self._pieces[number % len(self._pieces)] = _UNTOLD[:]

    def _end(self, number: int) -> None:
        place = number % len(self._pieces)
        piece, before = self._pieces[place], self._pieces[place - 1]
        if isinstance(piece, array) and piece.tobytes() == piece[:1].tobytes() * _PIECE_POINTS:
            self._pieces[place] = before if before == piece[0] else piece[0]


class ShardHistory:
    """Points of `point_s` for `span_s`. Costs four bytes a point of a series, and less where it rests."""

    def __init__(self, clock: Clock, *, point_s: float, span_s: float, series_max: int) -> None:
        self._clock = clock
        self.point_s = point_s
        self.points = max(1, round(span_s / point_s))
        self._series_max = series_max
        self._series: dict[SeriesName, Points] = {}
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
            points = self._series.get(series)
            if points is None:
                if len(self._series) >= self._series_max and not self._forget(slot):
                    self.left_out += 1
                    continue
                points = self._series[series] = Points(self.points)
            points.put(slot, value)

    def slot_now(self) -> int:
        """The number of the point that lasts now."""
        return int(self._clock.wall_s() // self.point_s)

    def lines(self) -> Iterator[tuple[SeriesName, Points]]:
        """Every series with its points."""
        yield from self._series.items()

    def _forget(self, slot: int) -> bool:
        """Drop what has told nothing for a round; whether anything was."""
        old = [series for series, points in self._series.items() if slot - points.last >= self.points]
        for series in old:
            del self._series[series]
        return bool(old)
