"""A seed of each run's own, which its workers share, and which its first lines tell; what is drawn by it."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

_NAME = "HEADGATE_TEST_SEED"
_LIST = Path(__file__).resolve().parents[1] / "slow_tests.txt"
_SLOW_ONE_IN = 5


def pytest_configure(config: pytest.Config) -> None:
    """Draw it, unless somebody named one; workers are started with the environment."""
    os.environ.setdefault(_NAME, str(Random().randrange(1_000_000)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed of random worlds: {fresh_seed()} (again: {_NAME}={fresh_seed()})"


def fresh_seed() -> int:
    """This run's seed."""
    return int(os.environ[_NAME])


def drawn(forms: Sequence[str], count: int, seed: int) -> set[str]:
    """So many forms of a test, or tests, by a run's seed: each comes in its turn."""
    return set(Random(f"{seed} {min(forms, default='')}").sample(sorted(forms), min(count, len(forms))))


def slow_tests() -> list[str]:
    """Those that take longest, by their node ids without a form, the longest first."""
    return [line for line in _LIST.read_text().splitlines() if not line.startswith("#")]


def resting(slow: Sequence[str], seed: int) -> set[str]:
    """Those of slow tests that a run leaves out: of such as take about as long it runs one, each in its turn."""
    parts = [slow[at : at + _SLOW_ONE_IN] for at in range(0, len(slow), _SLOW_ONE_IN)]
    return {test for part in parts for test in set(part) - drawn(part, 1, seed)}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are marked `drawn(count)` keep so many forms, and of slow tests one in so many.

    All are kept where `HEADGATE_TEST_ALL` says so, as in `make check` and `make nightly`, and of a file that is
    asked for.
    """
    if os.environ.get("HEADGATE_TEST_ALL") or any(Path(each.partition("::")[0]).is_file() for each in config.args):
        return
    forms: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        if mark := item.get_closest_marker("drawn"):
            forms.setdefault(test, []).append(item.nodeid)
            counts[test] = mark.args[0]
    kept = {form for test, all in forms.items() for form in drawn(all, counts[test], fresh_seed())}
    gone = {form for all in forms.values() for form in all} - kept
    there = {item.nodeid.partition("[")[0] for item in items}
    left = resting([test for test in slow_tests() if test in there], fresh_seed())
    gone.update(item.nodeid for item in items if item.nodeid.partition("[")[0] in left)
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in gone])
        items[:] = [item for item in items if item.nodeid not in gone]
