"""A seed of each run's own, which its workers share, and which its first lines tell; what is drawn by it."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

_NAME = "HEADGATE_TEST_SEED"
_LIST = Path(__file__).resolve().parents[1] / "slow_tests.txt"
_SLOW_ONE_IN = 4


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


def slow_tests() -> frozenset[str]:
    """Those that take longest, by their node ids without a form."""
    return frozenset(line for line in _LIST.read_text().splitlines() if not line.startswith("#"))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are marked `drawn(count)` keep so many forms, and of slow tests one in so many.

    All are kept where `HEADGATE_TEST_ALL` says so, as in `make check` and `make nightly`, and of a file that is
    asked for.
    """
    if os.environ.get("HEADGATE_TEST_ALL") or any(Path(each.partition("::")[0]).is_file() for each in config.args):
        return
    forms: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    slow = slow_tests() & {item.nodeid.partition("[")[0] for item in items}
    for item in items:
        test = item.nodeid.partition("[")[0]
        if mark := item.get_closest_marker("drawn"):
            forms.setdefault(test, []).append(item.nodeid)
            counts[test] = mark.args[0]
    kept = {form for test, all in forms.items() for form in drawn(all, counts[test], fresh_seed())}
    gone = {form for all in forms.values() for form in all} - kept
    resting = slow - drawn(sorted(slow), -(-len(slow) // _SLOW_ONE_IN), fresh_seed())
    gone.update(item.nodeid for item in items if item.nodeid.partition("[")[0] in resting)
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in gone])
        items[:] = [item for item in items if item.nodeid not in gone]
