"""What a scenario is given: the stack, how long to measure, and a meter around every slice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

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
    backlogs: tuple[int, ...] = (0, 1_000_000)

    def sized(self, full: int, small: int) -> int:
        """A size: the full one, or the small one of a quick run."""
        return small if self.small else full


FULL = Plan(rounds=5, slice_s=4.0, warmup_s=2.0)
QUICK = Plan(rounds=2, slice_s=0.5, warmup_s=0.3, small=True, backlogs=(0, 20_000))


@dataclass(frozen=True)
class Bench:
    """One scenario's surroundings. `peers`: run other software beside ours where a scenario can."""

    stack: BenchStack
    plan: Plan
    progress: Progress
    peers: bool = False

    async def slice(self, outcome: Outcome, cycles: Sequence[Callable[[], Awaitable[int]]]) -> tuple[Slice, Busy]:
        """Measure one slice and who was busy during it; note on the outcome what strangers used."""
        meter = self.stack.meter
        before = meter.read()
        done = await drive(cycles, self.plan.slice_s)
        busy = Meter.between(before, meter.read())
        self.watch(outcome, busy)
        return done, busy

    async def warm_up(self, cycles: Sequence[Callable[[], Awaitable[int]]]) -> None:
        """Let caches, connections and plans settle; nothing is kept of it."""
        await drive(cycles, self.plan.warmup_s)

    def watch(self, outcome: Outcome, busy: Busy) -> None:
        """Note what strangers used of the machine meanwhile."""
        outcome.other_cores.append(busy.other)
        if busy.other > OTHER_CORES_MAX:
            self.progress.note(f"other processes kept {busy.other:.2f} processors busy meanwhile")
