"""`python -m tests.worlds.soak`: real processes under load and faults for long, telling how it goes.

Each part is a new installation. Lanes (`lanes`) keep it at a rate, a random world goes on beside them, and
processes and servers are hurt all the time. Then everything is healed, comes to its end, and is judged: nothing
lost, early, or doubled within a lease, and nothing stuck. `make soak M=60` is an hour.

An operation is one element that a lane sent and that had its effect by the answer: an item (of a tenant or of a
node) enqueued, leased, acked, given back or extended, a node made, a DAG seen ended. Duplicates, lost leases, what
was not answered, and all that the random world does are not counted. Calls are told beside them.
"""

import argparse
import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.mutations.running import copy_of_the_tree
from tests.worlds.dag_lane import DagLane
from tests.worlds.installation import Installation, installation
from tests.worlds.lanes import Door, Lane, Lanes
from tests.worlds.nemesis import PAUSE_S
from tests.worlds.queue_lane import QueueLane
from tests.worlds.world import Broken, World, judge

_PART_MINUTES = 10.0
_RATE = 1_200.0
_QUEUE_LANES, _DAG_LANES = 5, 3
_FAULTS_AT_ONCE = 2
_PAUSE_S = (1.0, 8.0)  # of each of these, between two faults
# Of the world beside the lanes; its rounds follow one another, so that its oracles know what came before what.
_AT_ONCE, _ROUND_S, _STEPS_MAX = 16, 1.5, 20_000
_TOLD_S = 10.0
_FAULTS_SHOWN = 5  # of each time
# What was sent to a process that stood still is done, or was not, this long after it goes on.
QUIET_S = 6.0


@dataclass
class Count:
    """What was done in how long."""

    operations: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    lived_s: float = 0.0
    faults: int = 0

    def add(self, other: "Count") -> None:
        self.operations += other.operations
        self.calls += other.calls
        self.lived_s += other.lived_s
        self.faults += other.faults

    def __str__(self) -> str:
        total = self.operations.total()
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.operations.most_common())
        rate = f"{total / self.lived_s:.0f} a second" if self.lived_s else "none"
        return f"{total} operations in {self.calls} calls and {self.lived_s:.0f} s, {rate}; {kinds}"


def main() -> int:
    """Soak for as long as was asked; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long (default: 60)")
    parser.add_argument("--part", type=float, default=_PART_MINUTES, help="minutes of one part (default: 10)")
    parser.add_argument("--rate", type=float, default=_RATE, help=f"operations a second (default: {_RATE:.0f})")
    parser.add_argument("--seed", type=int, default=None, help="of the first part")
    parser.add_argument(
        "--kept", type=Path, default=Path(tempfile.gettempdir()), help="where a broken part is kept"
    )
    parser.add_argument(
        "--here", action="store_true", help="in this tree, which must not change, and not in a copy"
    )
    options = parser.parse_args()
    return asyncio.run(_run(options)) if options.here else _in_a_copy()


def _in_a_copy() -> int:
    """Processes are started all the time, and each is to be of the code that all others are of."""
    with tempfile.TemporaryDirectory(prefix="headgate-soak-tree-") as directory:
        tree = copy_of_the_tree(Path(directory))
        command = [sys.executable, "-m", "tests.worlds.soak", "--here", *sys.argv[1:]]
        return subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=False
        ).returncode


async def _run(options: argparse.Namespace) -> int:
    seed = Random().randrange(1_000_000) if options.seed is None else options.seed
    left_s, count, began_s = options.minutes * 60, Count(), time.monotonic()
    while left_s > 0:
        part_s = min(left_s, options.part * 60)
        with tempfile.TemporaryDirectory() as directory:
            try:
                count.add(await _part(Path(directory), seed, part_s, options.rate))
            except Exception as error:
                told = _keep(options.kept / f"headgate-soak-{seed}", Path(directory), error)
                print(f"BROKEN: part {seed}: {told}", flush=True)
                print(f"again: make soak M={part_s / 60:.0f} SEED={seed}", flush=True)
                return 1
        left_s, seed = left_s - part_s, seed + 1
    print(f"sound: {count}; {count.faults} faults of processes and servers")
    print(f"with starts, ends and judgements it took {time.monotonic() - began_s:.0f} s")
    print("0 lost, 0 early, 0 doubled within a lease, nothing stuck")
    return 0


def _keep(place: Path, directory: Path, error: Exception) -> str:
    """Write down what was found, beside the processes' logs; its first lines."""
    place.mkdir(parents=True, exist_ok=True)
    text = str(error) if isinstance(error, Broken) else repr(error)
    (place / "found.txt").write_text(text + "\n")
    for log in directory.glob("*.log"):
        with suppress(OSError):
            shutil.copy(log, place)
    shown = "\n".join(line[:400] for line in text.splitlines()[:20])
    if isinstance(error, Broken):
        return f"{shown}\nall of it: {place}"
    raise RuntimeError(f"the soak itself failed; its logs: {place}") from error


async def _part(directory: Path, seed: int, seconds: float, rate: float) -> Count:
    async with installation(directory) as where:
        world = World(seed, where, at_once_max=_AT_ONCE, steps_max=_STEPS_MAX)
        lanes = _lanes(world, rate)
        began_s = time.monotonic()
        telling = asyncio.create_task(_tell(world, lanes, where, seed, began_s))
        try:
            lanes.begin()
            await live(world, where, seconds, round_s=_ROUND_S, pause_s=_PAUSE_S, check=lanes.check)
            done = Count(lanes.operations, lanes.calls, time.monotonic() - began_s, len(where.nemesis.log) // 2)
            print(f"part {seed}: it is let go", flush=True)
            await lanes.end()
            await world.end()
        finally:
            telling.cancel()
            await lanes.close()
        print(f"part {seed}: it is judged", flush=True)
        world.faults += lanes.faults
        await judge(world)
        if found := where.tracebacks():
            raise Broken("\n".join(found))
        print(f"part {seed} is sound: {done}; beside it {world.summary()}", flush=True)
        await lanes.close_doors()
        return done


def _lanes(world: World, rate: float) -> Lanes:
    doors = {
        "queue": [Door(process) for process in world.stage.queues],
        "dag": [Door(process) for process in world.stage.dags],
    }
    share = rate / (_QUEUE_LANES + _DAG_LANES)
    lanes: list[Lane] = [QueueLane(world, f"items{n}", doors, share) for n in range(_QUEUE_LANES)]
    lanes += [DagLane(world, f"graphs{n}", doors, share) for n in range(_DAG_LANES)]
    return Lanes(lanes, [*doors["queue"], *doors["dag"]])


async def live(
    world: World,
    where: Installation,
    seconds: float,
    *,
    rounds_min: int = 0,
    round_s: float = 0.0,
    pause_s: tuple[float, float] = PAUSE_S,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Rounds for so long, while faults last, one begun each `round_s`; then everything is healed."""
    faults = [
        asyncio.create_task(where.nemesis.run(f"{world.seed} {n}", seconds, pause_s))
        for n in range(_FAULTS_AT_ONCE)
    ]
    until_s = time.monotonic() + seconds
    try:
        while time.monotonic() < until_s or world.round < rounds_min or not all(fault.done() for fault in faults):
            next_s = time.monotonic() + round_s
            await world.live(1)
            check()
            for fault in faults:
                if fault.done():
                    fault.result()  # else nothing is hurt any more, unseen
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        await asyncio.gather(*faults)
    finally:
        for fault in faults:
            fault.cancel()
    await where.nemesis.heal()
    world.history.hurt_until = world.now_s
    await asyncio.sleep(QUIET_S)


async def _tell(world: World, lanes: Lanes, where: Installation, seed: int, began_s: float) -> None:
    before, told_faults = 0, 0
    while True:
        await asyncio.sleep(_TOLD_S)
        done, faults = lanes.operations.total(), [*world.faults, *lanes.faults]
        for fault in faults[told_faults : told_faults + _FAULTS_SHOWN]:
            print(f"part {seed}: BROKEN: {fault[:400]}", flush=True)
        told_faults = len(faults)
        told = [
            f"part {seed}: {time.monotonic() - began_s:.0f} s",
            f"{done} operations, {(done - before) / _TOLD_S:.0f} a second",
            f"{lanes.calls} calls",
            f"{lanes.left} not over",
            f"{len(where.nemesis.log) // 2} faults of processes and servers",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB",
            f"{len(faults)} promises broken",
        ]
        print(", ".join(told), flush=True)
        before = done


if __name__ == "__main__":
    sys.exit(main())
