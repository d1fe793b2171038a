"""What a scenario is given: the stack, how long to measure, and a meter around every slice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.load import Slice, drive
from benchmarks.machine import OTHER_CORES_MAX, Busy, Meter
from benchmarks.outcome import Outcome
from benchmarks.progress import Progress
from benchmarks.stack import BenchStack


@dataclass(frozen=True)
class Plan:
    """How much to measure. A round measures every side of a comparison once; ratios are taken within rounds."""

    rounds: int
    slice_s: float
    warmup_s: float
    small: bool = False
    # Ready items in the way; empty for what each scenario has as its own.
    backlogs: tuple[int, ...] = ()
    snapshot_s: float = 600.0

    def backlogs_or(self, *usual: int) -> list[int]:
        """The backlogs asked for, or the usual ones; smallest first."""
        return sorted(self.backlogs or usual)

    def sized(self, full: int, small: int) -> int:
        """A size: the full one, or the small one of a quick run."""
        return small if self.small else full


FULL = Plan(rounds=5, slice_s=3.0, warmup_s=1.5)
QUICK = Plan(rounds=2, slice_s=0.5, warmup_s=0.5, small=True, backlogs=(0, 20_000), snapshot_s=4.0)


@dataclass(frozen=True)
class Bench:
    """One scenario's surroundings.

    `peers`: run other software beside ours where a scenario can; `pgmq_sql` is used instead of the package's.
    """

    stack: BenchStack
    plan: Plan
    progress: Progress
    peers: bool = False
    pgmq_sql: Path | None = None

    @property
    def pgmq(self) -> bool:
        """Whether pgmq is measured."""
        return self.peers or self.pgmq_sql is not None

    async def slice(self, outcome: Outcome, cycles: Sequence[Callable[[], Awaitable[int]]]) -> tuple[Slice, Busy]:
        """Measure one slice and who was busy during it; note on the outcome what strangers used."""
        wal_from = await self.stack.wal_bytes()
        before = self.stack.meter.read()
        done = await drive(cycles, self.plan.slice_s)
        busy = Meter.between(before, self.stack.meter.read())
        self.watch(outcome, busy)
        return replace(done, wal_bytes=await self.stack.wal_bytes() - wal_from), busy

    def on(self, stack: BenchStack) -> Bench:
        """The same on another stack."""
        return replace(self, stack=stack)

    async def warm_up(self, cycles: Sequence[Callable[[], Awaitable[int]]]) -> None:
        """Let caches, connections and plans settle; nothing is kept of it."""
        await drive(cycles, self.plan.warmup_s)

    def watch(self, outcome: Outcome, busy: Busy) -> None:
        """Note what strangers used of the machine meanwhile."""
        outcome.other_cores.append(busy.other)
        if busy.other > OTHER_CORES_MAX:
            self.progress.note(f"other processes kept {busy.other:.2f} processors busy meanwhile")
