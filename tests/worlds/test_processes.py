"""A world of real processes while random faults come: processes and servers are killed, shut down and stopped.

`HEADGATE_TEST_SOAK_S=600 .venv/bin/pytest -n 0 -s tests/worlds/test_processes.py` runs it for longer and shows the
counts. Its faults are those of the run's seed.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.support.seeds import fresh_seed
from tests.worlds.installation import Installation, installation
from tests.worlds.world import World, judge

SOAK_S = float(os.environ.get("HEADGATE_TEST_SOAK_S", "10"))
_ROUNDS_MIN = 20
# What was sent to a process that stood still is done, or was not, this long after it goes on.
_QUIET_S = 6.0


async def _live(world: World, where: Installation) -> None:
    """Rounds for so long, and while faults last; then everything is healed."""
    faults = [asyncio.create_task(where.nemesis.run(f"{fresh_seed()} {n}", SOAK_S)) for n in range(2)]
    until_s = time.monotonic() + SOAK_S
    while time.monotonic() < until_s or world.round < _ROUNDS_MIN or not all(fault.done() for fault in faults):
        await world.live(1)
    await asyncio.gather(*faults)
    await where.nemesis.heal()
    await asyncio.sleep(_QUIET_S)


@pytest.mark.parametrize("ownership", ["exclusive", "everyone"])
async def test_a_world_of_processes_is_sound_whatever_befalls_them(tmp_path: Path, ownership: str) -> None:
    """`everyone`: each process takes every shard for its own."""
    async with installation(tmp_path, ownership=ownership) as where:
        world = World(fresh_seed(), where, at_once_max=40)
        try:
            await _live(world, where)
            await world.end()
            await judge(world)
        finally:
            print(*where.nemesis.log, world.summary(), sep="\n")
        assert where.tracebacks() == []
