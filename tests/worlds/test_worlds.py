"""Random worlds as part of the suite: those that were broken once, and some that nobody has seen.

Each run has a first seed of its own, which its header tells; what a broken world says ends with how to see it
again.
`HEADGATE_TEST_SEED` names one, `HEADGATE_TEST_WORLDS_S` says for how long new worlds begin.
"""

import math
import os
import time
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.support.seeds import fresh_seed
from tests.worlds.world import kept_seeds, run

WORLDS_S = float(os.environ.get("HEADGATE_TEST_WORLDS_S", "10"))
# Workers share them by parts of so long.
_PART_S = 30.0
_PARTS = max(math.ceil(WORLDS_S / _PART_S), 1)
_SEEDS_OF_A_PART = 10_000


@pytest.mark.parametrize("part", range(_PARTS))
async def test_worlds_that_nobody_has_seen_are_sound(databases: Databases, tmp_path: Path, part: int) -> None:
    until_s = time.monotonic() + WORLDS_S / _PARTS
    seed = fresh_seed() + part * _SEEDS_OF_A_PART
    while True:
        await run(databases, tmp_path, seed)
        seed += 1
        if time.monotonic() >= until_s:
            return


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("seed", "edition"), kept_seeds())
async def test_a_world_that_was_broken_once_is_sound(
    databases: Databases, tmp_path: Path, seed: int, edition: int
) -> None:
    await run(databases, tmp_path, seed, edition=edition)
