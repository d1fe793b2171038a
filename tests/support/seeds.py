"""A seed of each run's own, which its workers share, and which its first lines tell."""

import os
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
