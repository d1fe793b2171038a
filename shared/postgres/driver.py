"""The driver's connection, with what is asked of it again and again kept prepared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows before which loss it was opened; see `Pool._forget`.

    It keeps what it has prepared, `statements_max` statements: to find one again the driver goes a longer way, at
    a price that a small statement feels.
    """

    __slots__ = ("_prepared", "generation")

    statements_max = 100

    def __init__(self, *parts: Any, **others: Any) -> None:
        super().__init__(*parts, **others)
        self._prepared: OrderedDict[str, PreparedStatement] = OrderedDict()

    def fetch(self, query: str, *args: Any) -> Awaitable[list[Any]]:
        """All rows of a statement.

        Raises:
            InvalidCachedStatementError: tables have changed since it was prepared, and a transaction is open.
        """
        return self._ask(PreparedStatement.fetch, query, args)

    def fetchrow(self, query: str, *args: Any) -> Awaitable[Any]:
        """The first row of a statement, or None. Raises as `fetch`."""
        return self._ask(PreparedStatement.fetchrow, query, args)

    async def _ask(self, verb: Callable[..., Awaitable[Any]], query: str, args: tuple[Any, ...]) -> Any:
        statement = self._prepared.get(query)
        if statement is None:
            return await verb(await self._keep(query), *args)
        self._prepared.move_to_end(query)
        try:
            return await verb(statement, *args)
        except asyncpg.InvalidCachedStatementError:
            self._prepared.clear()
            if self.is_in_transaction():
                raise
            return await verb(await self._keep(query), *args)

    async def _keep(self, query: str) -> PreparedStatement:
        statement = self._prepared[query] = await self.prepare(query)
        if len(self._prepared) > self.statements_max:
            self._prepared.popitem(last=False)
        return statement

    @property
    def itself(self) -> Connection:
        """What a pool's proxy stands for. Asking that costs less, and only whoever holds it has it."""
        return self
