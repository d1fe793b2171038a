"""Rows of statements as named tuples, whose fields are the statement's columns in order (a test compares them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shared.postgres.sql import Statement

R = TypeVar("R")


class Asked(Protocol):
    """A pool, where a statement is a transaction of its own, or a transaction."""

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """All rows of a statement."""


async def rows_of(row: Callable[..., R], asked: Asked, statement: Statement, **values: Any) -> list[R]:
    """All rows of a statement, typed."""
    return [row(*columns) for columns in await asked.fetch(statement, **values)]


async def row_of(row: Callable[..., R], asked: Asked, statement: Statement, **values: Any) -> R | None:
    """The first row of a statement, typed; None where there is none."""
    found = await asked.fetch(statement, **values)
    return row(*found[0]) if found else None


async def only_row_of(row: Callable[..., R], asked: Asked, statement: Statement, **values: Any) -> R:
    """As `row_of`, of a statement that always has one."""
    found = await asked.fetch(statement, **values)
    return row(*found[0])
