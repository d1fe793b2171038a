"""Named points at which a test may kill the process: `HEADGATE_CRASH_AT=name`. Costs one comparison.

An absolute path names a file that holds the name, so that a process can be told while it runs.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_CRASH_AT = os.environ.get("HEADGATE_CRASH_AT")


def crash_point(name: str) -> None:
    """Die by SIGKILL here when the environment names this point; nothing gets to clean up."""
    if _CRASH_AT is not None and name == _named(_CRASH_AT):
        os.kill(os.getpid(), signal.SIGKILL)


def _named(given: str) -> str:
    return Path(given).read_text() if given.startswith("/") else given
