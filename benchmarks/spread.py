"""Medians with their spread: what a handful of repeated measurements is worth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of some values and how far they lie apart."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    @property
    def straddles_one(self) -> bool:
        """Whether a ratio lies on both sides of 1: then neither side has won."""
        return self.low <= 1.0 <= self.high


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(values), min(values), max(values), tuple(values))


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The spread of the quotients of pairs that were measured side by side; ratios first, median last."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` of them do not exceed."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)  # rounded up
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]
