"""Takes the samples: of each shard what this process knows of it anyway, from memory, and asks no shard for it.

What changed since the last sample becomes a mark: a breaker opened or closed, a shard drains, moved or was taken
over, its server was replaced, this process owns it or does no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from prometheus_client import Counter

from shared.clock import Clock
from shared.console.history import SeriesName, ShardHistory
from shared.ids import ShardNo
from shared.shards.ownership import Ownership
from shared.shards.shard_map import Shard, ShardMap

_NAMED_MAX = 8


class Rates:
    """How fast counters grow between two looks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: dict[SeriesName, float] = {}
        self._looked_s: float | None = None
        self._span_s = 0.0

    def begin(self) -> None:
        """A look begins."""
        now_s = self._clock.monotonic_s()
        self._span_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s

    def grown(self, series: SeriesName, total: float) -> float | None:
        """By how much a second; None at the first look."""
        before = self._before.get(series)
        self._before[series] = total
        if before is None or self._span_s <= 0 or total < before:
            return None
        return (total - before) / self._span_s


class Sampling:
    """The loop's step. `more` tells what a service knows beside what is common to both."""

    def __init__(
        self,
        history: ShardHistory,
        shards: ShardMap,
        ownership: Ownership,
        clock: Clock,
        *,
        counters: Mapping[str, Counter],
        more: Callable[[], Iterable[tuple[SeriesName, float]]],
    ) -> None:
        self._history = history
        self._shards = shards
        self._ownership = ownership
        self._counters = counters
        self._more = more
        self._rates = Rates(clock)
        self._queries: dict[ShardNo, float] = {}
        self._draining: dict[ShardNo, bool] = {}
        self._places: dict[ShardNo, tuple[str, int]] = {}
        self._owned: set[ShardNo] | None = None
        history.mark("start", f"{ownership.name} started")
        for shard in shards:
            self.join(shard)

    def join(self, shard: Shard) -> None:
        """Notice what becomes of one more shard."""
        shard.breaker.listeners.append(partial(self._breaker_moved, shard.number))
        shard.history.listeners.append(
            partial(self._history.mark, "failover", "its server was replaced or restarted", shard.number)
        )

    async def step(self) -> int:
        """Take one sample."""
        self._notice()
        self._rates.begin()
        values = {series: value for shard in self._shards for series, value in self._of(shard)}
        values.update(self._more())
        self._history.take(values)
        return 0

    def _of(self, shard: Shard) -> list[tuple[SeriesName, float]]:
        number = shard.number
        if shard.is_retired:
            return []
        found = [
            (SeriesName("up", number), float(shard.breaker.takes_items)),
            (SeriesName("waiting_calls", number), float(shard.pool.line.waiting + shard.relaxed.line.waiting)),
        ]
        totals = {name: counter.labels(number)._value.get() for name, counter in self._counters.items()}
        totals["errors_per_s"] = shard.pool.errors._value.get()
        for name, total in totals.items():
            series = SeriesName(name, number)
            grown = self._rates.grown(series, total)
            if grown is not None:
                found.append((series, grown))
        taken = self._latencies(shard)
        if taken:
            found.append((SeriesName("db_latency_ms_p50", number), taken[len(taken) // 2] * 1000))
            found.append((SeriesName("db_latency_ms_p99", number), taken[len(taken) * 99 // 100] * 1000))
        return found

    def _latencies(self, shard: Shard) -> Sequence[float]:
        """The times of statements since the last sample, as many as are remembered, ascending."""
        pool = shard.pool
        total = pool.statements
        new = int(total - self._queries.get(shard.number, 0))
        self._queries[shard.number] = total
        if not new:
            return ()
        return sorted(islice(reversed(pool.latencies_s), new))

    def _notice(self) -> None:
        owned = set()
        for shard in self._shards:
            number, mark = shard.number, self._history.mark
            if self._ownership.owns(number):
                owned.add(number)
            drains = not shard.is_retired and self._shards.is_draining(number)
            if drains != self._draining.setdefault(number, drains):
                self._draining[number] = drains
                mark("drain", "drains: it takes nothing new" if drains else "takes new items again", number)
            place = (shard.address.dsn, shard.address.epoch)
            if place != self._places.setdefault(number, place):
                self._places[number] = place
                mark("move", "moved to another server", number)
        if self._owned is not None:
            self._tell_owned("owns", owned - self._owned)
            self._tell_owned("no longer owns", self._owned - owned)
        self._owned = owned

    def _tell_owned(self, verb: str, numbers: set[ShardNo]) -> None:
        if not numbers:
            return
        named = ", ".join(map(str, sorted(numbers)[:_NAMED_MAX]))
        more = f" and {len(numbers) - _NAMED_MAX} more" if len(numbers) > _NAMED_MAX else ""
        only = next(iter(numbers)) if len(numbers) == 1 else None
        noun = "shards" if only is None else "shard"
        self._history.mark("owner", f"{self._ownership.name} {verb} {noun} {named}{more}", only)

    def _breaker_moved(self, number: ShardNo, state: str) -> None:
        if state == "half_open":
            return
        said = "does not answer: calls are refused at once" if state == "open" else "answers again"
        last = next((mark for mark in reversed(self._history.marks) if mark.shard == number), None)
        if last is None or (last.kind, last.text) != ("breaker", said):  # it opens again after every failed probe
            self._history.mark("breaker", said, number)
