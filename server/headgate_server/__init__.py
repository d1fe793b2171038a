"""Where the services are, and how they are put on the path.

Installed from a wheel, `services`, `shared`, `migrations`, `shards` and `audit` lie in a directory of their own:
other distributions have packages of these names. In a clone they lie in its root.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent


def home() -> Path:
    """The directory that holds the packages of the services."""
    installed = _HERE / "packages"
    return installed if installed.is_dir() else _HERE.parents[1]


def put_on_path() -> None:
    """Let this process, and those that it starts, import the services before anything of the same name."""
    place = str(home())
    sys.path.insert(0, place)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))


def up(arguments: Sequence[str]) -> int:
    """Run all of it here until a signal, as `headgate up` with these options; its exit code."""
    put_on_path()
    from services.local.__main__ import main

    return main(arguments, prog="headgate up")
