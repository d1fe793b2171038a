"""A histogram for the hot path: the library's own looks at its bounds one by one, under two locks.

It is filled by the event loop's thread alone. A scrape in another thread may see a value counted whose time is
not in the sum yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The values of one set of labels."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def told(self) -> tuple[list[int], float]:
        """How many values were at most each bound, and all, and their sum."""
        return list(accumulate(self._counts)), self._sum


class Histogram(Collector):
    """Values counted by the first of `buckets`, which ascend, that is no less than they."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = labelnames
        self._bounds = tuple(map(float, buckets))
        self._series: dict[tuple[str, ...], Series] = {}
        if not labelnames:
            self.labels()
        registry.register(self)

    def labels(self, *values: object) -> Series:
        """The series with these values of the labels. To be kept by who uses it often."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {self._labelnames}")
        return self._series.setdefault(tuple(map(str, values)), Series(self._bounds))

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Tell no more of the series that have these values of these labels."""
        wanted = {self._labelnames.index(name): value for name, value in labels.items()}
        for values in list(self._series):
            if all(values[at] == value for at, value in wanted.items()):
                del self._series[values]

    def observe(self, value: float) -> None:
        """Count a value, where there are no labels."""
        self._series[()].observe(value)

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The family without values: by its name the registry finds that two are the same."""
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The family, for a scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, series in list(self._series.items()):
            counts, sum_of_all = series.told()
            family.add_metric(values, list(zip(bounds, map(float, counts), strict=True)), sum_of_all)
        return [family]
