"""A seed of each run's own, which its workers share, and which its first lines tell; what is drawn by it."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

_NAME = "HEADGATE_TEST_SEED"


def pytest_configure(config: pytest.Config) -> None:
    """Draw it, unless somebody named one; workers are started with the environment."""
    os.environ.setdefault(_NAME, str(Random().randrange(1_000_000)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed of random worlds: {fresh_seed()} (again: {_NAME}={fresh_seed()})"


def fresh_seed() -> int:
    """This run's seed."""
    return int(os.environ[_NAME])


def drawn(forms: Sequence[str], count: int, seed: int) -> set[str]:
    """So many forms of a test, by a run's seed: each form comes in its turn."""
    return set(Random(f"{seed} {min(forms)}").sample(sorted(forms), min(count, len(forms))))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are marked `drawn(count)` keep so many forms.

    All are kept where `HEADGATE_TEST_ALL` says so, as in `make check` and `make nightly`, and of a file that is
    asked for.
    """
    if os.environ.get("HEADGATE_TEST_ALL") or any(Path(each.partition("::")[0]).is_file() for each in config.args):
        return
    forms: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for item in items:
        if mark := item.get_closest_marker("drawn"):
            test = item.nodeid.partition("[")[0]
            forms.setdefault(test, []).append(item.nodeid)
            counts[test] = mark.args[0]
    kept = {form for test, all in forms.items() for form in drawn(all, counts[test], fresh_seed())}
    left = [item for item in items if item.get_closest_marker("drawn") and item.nodeid not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = {item.nodeid for item in left}
        items[:] = [item for item in items if item.nodeid not in gone]
