"""Temporary directories of a run in memory, where there is room: making and dropping databases is mostly files."""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 << 30


def use_memory() -> None:
    """Put what this process and its children make for a while into memory. TMPDIR names another place."""
    if "TMPDIR" in os.environ or not _has_room():
        return
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # asked for already, perhaps


def _has_room() -> bool:
    """Containers often have 64 MB there, or let nothing run from there."""
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        return False
    return not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
