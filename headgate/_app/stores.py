"""Where arguments and results are kept that are too large for the services.

A value is kept under the hash of its bytes, so the same value again takes no more room, and a job that is run
again writes what it wrote before. Nothing is ever deleted here: let the store drop what is older than results
are kept.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Keeps bytes by key. Called in threads, of callers and of workers."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value. It may be there already."""

    def get(self, key: str) -> bytes:
        """The value. Raises KeyError where there is none."""
        raise NotImplementedError


class FileStore:
    """Files in a directory that callers and workers share."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def put(self, key: str, value: bytes) -> None:
        path = self._path(key)
        if path.exists():
            os.utime(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def get(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") or os.sep in part for part in parts):
            raise KeyError(key)
        return self._directory.joinpath(*parts)
