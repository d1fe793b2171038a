"""Sides of a comparison, measured in turns: a slice of each in every round, in an order that rotates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.floors import Cycle
from benchmarks.load import Slice
from benchmarks.machine import Busy
from benchmarks.outcome import Outcome
from benchmarks.peers.environment import PeerFailed, leave_out
from benchmarks.spread import Spread, ratios
from benchmarks.stack import BenchStack
from benchmarks.workers import Workers


class Side(Protocol):
    """One side: how it warms up and how a slice of it is measured."""

    async def warm_up(self, bench: Bench) -> None:
        """Let caches, connections and plans settle."""

    async def measure(self, bench: Bench, outcome: Outcome) -> tuple[Slice, Busy]:
        """One slice, and who was busy in it."""


@dataclass(frozen=True)
class Cycles:
    """A side whose load this process drives. `stack` where it is not the scenario's own."""

    cycles: Sequence[Cycle]
    stack: BenchStack | None = None

    async def warm_up(self, bench: Bench) -> None:
        """Let caches, connections and plans settle."""
        await bench.warm_up(self.cycles)

    async def measure(self, bench: Bench, outcome: Outcome) -> tuple[Slice, Busy]:
        """One slice, and who was busy in it."""
        return await (bench if self.stack is None else bench.on(self.stack)).slice(outcome, self.cycles)


@dataclass
class Measured:
    """What a side did: a rate per round, its cost over all rounds, p99s of its dequeues where they are timed."""

    rates: list[float] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    p99s_ms: list[float] = field(default_factory=list)

    def over(self, other: Measured) -> Spread:
        """The ratio of the rates, within rounds."""
        return ratios(self.rates, other.rates)


async def in_turns(
    bench: Bench,
    outcome: Outcome,
    name: str,
    sides: Mapping[str, Side],
    *,
    workers: Mapping[str, Workers] | None = None,
) -> dict[str, Measured]:
    """Measure every side in every round and add a row of each; `workers` are those whose dequeues are timed.

    A peer that fails is left out of the answer.
    """
    found = {name: Measured() for name in sides}
    for one_name, one in sides.items():
        try:
            await one.warm_up(bench)
        except PeerFailed as error:
            leave_out(bench, outcome, one_name, error)
            del found[one_name]
    for timed in (workers or {}).values():
        timed.dequeues_ms.clear()
    order = list(found)
    for turn in range(bench.plan.rounds):
        shift = turn % len(order)
        for side in order[shift:] + order[:shift]:
            if side not in found:
                continue
            try:
                done, busy = await sides[side].measure(bench, outcome)
            except PeerFailed as error:
                leave_out(bench, outcome, side, error)
                del found[side]
                continue
            # A side that did nothing counts one item, so that it can be divided by.
            found[side].rates.append(max(done.items, 1) / done.elapsed_s)
            found[side].cost.add(busy, max(done.items, 1), done.wal_bytes)
            if workers and side in workers:
                found[side].p99s_ms.append(workers[side].take_p99_ms())
            bench.progress.step(f"{name}  {side}: {done.items_per_s:,.0f} items/s")
    for side, measured in found.items():
        outcome.add(f"{name}: {side}", "items/s", measured.rates, measured.cost)
    for side, measured in found.items():
        if measured.p99s_ms:
            outcome.add(f"{name}: {side}, dequeue p99", "ms", measured.p99s_ms)
    return found
