"""A world of real processes while random faults come: processes and servers are killed, shut down and stopped.

`HEADGATE_TEST_SOAK_S=600 .venv/bin/pytest -n 0 -s tests/worlds/test_processes.py` runs it for longer and shows the
counts. Its faults are those of the run's seed.
"""

import os
from pathlib import Path

import pytest

from tests.support.seeds import fresh_seed
from tests.worlds.installation import installation
from tests.worlds.soak import live
from tests.worlds.world import World, judge

SOAK_S = float(os.environ.get("HEADGATE_TEST_SOAK_S", "6"))
_ROUNDS_MIN = 20


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ownership", ["exclusive", "everyone"])
async def test_a_world_of_processes_is_sound_whatever_befalls_them(tmp_path: Path, ownership: str) -> None:
    """`everyone`: each process takes every shard for its own."""
    async with installation(tmp_path, ownership=ownership) as where:
        world = World(fresh_seed(), where, at_once_max=40)
        try:
            await live(world, where, SOAK_S, rounds_min=_ROUNDS_MIN)
            await world.end()
            await judge(world)
        finally:
            print(*where.nemesis.log, world.summary(), sep="\n")
        assert where.tracebacks() == []
