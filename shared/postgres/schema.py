"""The schema revision this code was written for, read from the migrations' file names."""

from __future__ import annotations

from pathlib import Path

_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def head(service: str) -> str:
    """The newest revision of a service's migrations: the four-digit prefix of its last file."""
    return max(path.name[:4] for path in (_MIGRATIONS / service / "versions").glob("[0-9]*_*.py"))
