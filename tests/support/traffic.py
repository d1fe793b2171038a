"""What goes between a process and its database: most rows of a statement, and most bytes to it and from it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from shared.postgres import driver


class Traffic:
    """The heaviest statement of each measure since it began: (rows or bytes, the statement)."""

    def __init__(self) -> None:
        self.rows = (0, "")
        self.told = (0, "")
        self.given = (0, "")
        self.statements = 0

    def met(self, text: str, args: Sequence[Any], rows: Sequence[Any]) -> None:
        """A statement was asked."""
        self.statements += 1
        self.rows = max(self.rows, (len(rows), text))
        self.told = max(self.told, (sum(map(size_of, rows)), text))
        self.given = max(self.given, (sum(map(size_of, args)), text))


def size_of(value: Any) -> int:
    """About the bytes of a value: of texts exactly, of all else a few."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, asyncpg.Record):
        return sum(map(size_of, value.values()))
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, Sequence):
        return sum(map(size_of, value))
    return 8


@contextmanager
def traffic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Measure every statement of this process."""
    found = Traffic()
    original = driver.Connection.fetch

    async def fetch(self: Any, query: str, *args: Any, **options: Any) -> Any:
        rows = await original(self, query, *args, **options)
        found.met(query.strip().split("\n")[0][:200], args, rows)
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(driver.Connection, "fetch", fetch)
        yield found
