"""The tests start some hundred processes; each would compile all that it imports."""

import os
import sys


def keep_compiled() -> None:
    """Let this process, and those that it starts, keep what they compile, also where the environment says no."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
