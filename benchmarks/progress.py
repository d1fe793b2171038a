"""One line per measured slice, with how much is left."""

from __future__ import annotations

import sys
import time

_BAR = 24
_CLEAR = "\r\033[K"


class Progress:
    """Counts slices. On a terminal a bar stays on the last line; elsewhere every slice is a line."""

    def __init__(self) -> None:
        self._scenario = ""
        self._steps = 0
        self._done = 0
        self._begun_s = 0.0
        self._bar = sys.stderr.isatty()

    def begin(self, scenario: str, steps: int) -> None:
        """A scenario of so many slices."""
        self._scenario, self._steps, self._done = scenario, steps, 0
        self._begun_s = time.monotonic()

    def note(self, text: str) -> None:
        """Something worth knowing that is not a slice."""
        self._write(f"{self._scenario}: {text}" if self._scenario else text)

    def step(self, text: str) -> None:
        """A slice is done; `text` says what it showed."""
        self._done += 1
        elapsed_s = time.monotonic() - self._begun_s
        left_s = elapsed_s / self._done * max(0, self._steps - self._done)
        self._write(f"{self._scenario} {self._done:>3}/{self._steps}  {text}")
        if self._bar and self._done < self._steps:
            full = _BAR * self._done // self._steps
            print(
                f"[{'#' * full}{'.' * (_BAR - full)}] about {left_s:.0f} s left",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def _write(self, text: str) -> None:
        print(_CLEAR + text if self._bar else text, file=sys.stderr, flush=True)
