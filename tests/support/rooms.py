"""What a run has left out: `make test-fast` is quick since it starts no database, and says so."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[1]
_TEST = re.compile(r"^\s*(?:async )?def test_", re.MULTILINE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the rooms that were not run, where whole rooms were."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if all(path.is_dir() for path in asked) and (left := list(_left_out(asked))):
        terminalreporter.write_line(f"left out: {', '.join(left)}; `make test` runs all")


def _left_out(asked: list[Path]) -> Iterator[str]:
    for room in sorted(path for path in _TESTS.iterdir() if path.is_dir()):
        files = [file for file in room.rglob("test_*.py") if not any(file.is_relative_to(path) for path in asked)]
        if count := sum(len(_TEST.findall(file.read_text())) for file in files):
            yield f"{count:,} tests of tests/{room.name}"
