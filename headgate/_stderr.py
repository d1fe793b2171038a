"""A line on the standard error, for the command line and the supervisor of workers."""

import contextlib
import sys


def stderr_line(text: str) -> None:
    """Say a line on the standard error; where that is closed, to nobody."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text.rstrip("\n") + "\n")
