"""Random worlds as part of the suite: those that were broken once, and others for about two minutes in all.

`HEADGATE_TEST_WORLDS_S` makes that longer; `HEADGATE_TEST_SEED` sets the first seed, which else is another each
time, and is told by what fails.
"""

import os
import time
from pathlib import Path
from random import Random

import pytest

from tests.support.databases import Databases
from tests.worlds.world import kept_seeds, run

PARTS = 6
WORLDS_S = float(os.environ.get("HEADGATE_TEST_WORLDS_S", "120"))
SEED = os.environ.get("HEADGATE_TEST_SEED", "")


@pytest.mark.parametrize("part", range(PARTS))
async def test_worlds_are_sound(databases: Databases, tmp_path: Path, part: int) -> None:
    until_s = time.monotonic() + WORLDS_S / PARTS
    seed = int(SEED) + part * 1_000 if SEED else Random().randrange(10**6)
    while True:
        await run(databases, tmp_path, seed)
        seed += 1
        if time.monotonic() >= until_s:
            return


@pytest.mark.parametrize("seed", kept_seeds())
async def test_a_world_that_was_broken_once_is_sound(databases: Databases, tmp_path: Path, seed: int) -> None:
    await run(databases, tmp_path, seed)
