"""Crash points: which one kills, by what, and that others do not."""

import os
import signal
from pathlib import Path

import pytest

from shared import crash


@pytest.mark.parametrize(
    ("told", "in_file", "dies"),
    [
        (None, None, False),
        ("here", None, True),
        ("there", None, False),
        ("file", "here", True),
        ("file", "no", False),
    ],
)
def test_a_process_dies_at_the_point_that_is_named_and_at_no_other(
    told: str | None, in_file: str | None, dies: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if in_file is not None:
        (tmp_path / "point").write_text(in_file)
        told = str(tmp_path / "point")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(crash, "_CRASH_AT", told)
    monkeypatch.setattr(os, "kill", lambda *to: sent.append(to))
    crash.crash_point("here")
    assert sent == ([(os.getpid(), signal.SIGKILL)] if dies else [])
