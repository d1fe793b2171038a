"""Random worlds as part of the suite: those that were broken once, and a few others.

`HEADGATE_TEST_WORLDS_S` makes that longer; `HEADGATE_TEST_SEED` sets the first seed. New seeds are for
`make worlds`: what a commit is judged by is the same each time, as far as the order of events is.
"""

import os
import time
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.worlds.world import kept_seeds, run

PARTS = 1
WORLDS_S = float(os.environ.get("HEADGATE_TEST_WORLDS_S", "0"))
SEED = int(os.environ.get("HEADGATE_TEST_SEED", "805491"))


@pytest.mark.parametrize("part", range(PARTS))
async def test_worlds_are_sound(databases: Databases, tmp_path: Path, part: int) -> None:
    until_s = time.monotonic() + WORLDS_S / PARTS
    seed = SEED + part
    while True:
        await run(databases, tmp_path, seed)
        seed += PARTS
        if time.monotonic() >= until_s:
            return


@pytest.mark.parametrize("seed", kept_seeds())
async def test_a_world_that_was_broken_once_is_sound(databases: Databases, tmp_path: Path, seed: int) -> None:
    await run(databases, tmp_path, seed)
