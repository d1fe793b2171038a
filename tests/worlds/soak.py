"""`python -m tests.worlds.soak`: a world of real processes under load and faults for long, telling how it goes.

Each part is a new installation, lives for some minutes, is healed and drained, and is then judged by the oracles
as every world is: nothing lost, early, or doubled within a lease, and nothing stuck. `make soak M=60` is an hour.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.worlds.installation import Installation, installation
from tests.worlds.world import Broken, World, judge

_PART_MINUTES = 10.0
_AT_ONCE = 160  # calls of a round; rounds follow one another, so that the oracles know what came before what
_TOLD_S = 10.0
# What was sent to a process that stood still is done, or was not, this long after it goes on.
QUIET_S = 6.0


def main() -> int:
    """Soak for as long as was asked; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long (default: 60)")
    parser.add_argument("--part", type=float, default=_PART_MINUTES, help="minutes of one part (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the first part")
    options = parser.parse_args()
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    seed = Random().randrange(1_000_000) if options.seed is None else options.seed
    left_s, operations, lived_s = options.minutes * 60, 0, 0.0
    while left_s > 0:
        part_s = min(left_s, options.part * 60)
        with tempfile.TemporaryDirectory() as directory:
            try:
                done, took_s = await _part(Path(directory), seed, part_s)
            except Broken as error:
                print(error, flush=True)
                return 1
        operations, lived_s, left_s, seed = operations + done, lived_s + took_s, left_s - part_s, seed + 1
    print(f"sound: {operations} operations in {lived_s:.0f} s, {operations / lived_s:.0f} a second")
    print("0 lost, 0 early, 0 doubled within a lease, nothing stuck")
    return 0


async def _part(directory: Path, seed: int, seconds: float) -> tuple[int, float]:
    async with installation(directory) as where:
        world = World(seed, where, at_once_max=_AT_ONCE)
        began_s = time.monotonic()
        telling = asyncio.create_task(_tell(world, where, seed, began_s))
        try:
            await live(world, where, seconds)
            lived_s = time.monotonic() - began_s
            done = operations_of(world)
            print(f"part {seed}: it is let go", flush=True)
            await world.end()
        finally:
            telling.cancel()
        print(f"part {seed}: it is judged", flush=True)
        await judge(world)
        if found := where.tracebacks():
            raise Broken("\n".join(found))
        print(f"part {seed} is sound: {world.summary()}", flush=True)
        return done, lived_s


async def live(world: World, where: Installation, seconds: float, rounds_min: int = 0) -> None:
    """Rounds for so long, and while faults last; then everything is healed."""
    faults = [asyncio.create_task(where.nemesis.run(f"{world.seed} {n}", seconds)) for n in range(2)]
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or world.round < rounds_min or not all(fault.done() for fault in faults):
        await world.live(1)
    await asyncio.gather(*faults)
    await where.nemesis.heal()
    await asyncio.sleep(QUIET_S)


def operations_of(world: World) -> int:
    """Elements that were sent or came."""
    return len(world.history.sent) + world.history.counts.total() + sum(len(dag.acts) for dag in world.dags.all)


async def _tell(world: World, where: Installation, seed: int, began_s: float) -> None:
    before = 0
    while True:
        await asyncio.sleep(_TOLD_S)
        done = operations_of(world)
        at_s = time.monotonic() - began_s
        told = f"part {seed}: {at_s:.0f} s, {done} operations, {(done - before) / _TOLD_S:.0f} a second"
        print(f"{told}, {len(world.faults)} faults found; {where.nemesis.log[-1:]}", flush=True)
        before = done


if __name__ == "__main__":
    sys.exit(main())
