"""Rows of statements as named tuples, whose fields are the statement's columns in order; the values of one column;
maps of two. A test compares each with the columns of its statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shared.postgres.sql import Statement

K = TypeVar("K")
V = TypeVar("V")
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


async def column_of(of: type[V], asked: Asked, statement: Statement, **values: Any) -> list[V]:
    """The values of a statement that has one column."""
    return [value for (value,) in await asked.fetch(statement, **values)]


async def value_of(of: type[V], asked: Asked, statement: Statement, **values: Any) -> V:
    """The value of a statement that always has one row, of one column."""
    [(value,)] = await asked.fetch(statement, **values)
    return value  # type: ignore[no-any-return]


async def value_or_none(of: type[V], asked: Asked, statement: Statement, **values: Any) -> V | None:
    """The value of a statement of one column; None where it has no row."""
    found = await asked.fetch(statement, **values)
    return found[0][0] if found else None


async def map_of(key: type[K], of: type[V], asked: Asked, statement: Statement, **values: Any) -> dict[K, V]:
    """The rows of a statement of two columns."""
    return dict(await asked.fetch(statement, **values))


async def only_row_of(row: Callable[..., R], asked: Asked, statement: Statement, **values: Any) -> R:
    """As `row_of`, of a statement that always has one."""
    found = await asked.fetch(statement, **values)
    return row(*found[0])
