"""The service's `Store` on one plain connection, with any session settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from benchmarks.stack import BenchStack
from services.queue.settings import QueueSettings
from services.queue.store.shard_store import Store
from shared.postgres import arrays
from shared.postgres.connections import Transaction
from shared.postgres.history import History
from shared.postgres.sql import Statement
from shared.shards.shard_map import Shard

T = TypeVar("T")


class DirectShard:
    """A shard behind one connection: what `Store` needs of a `Shard`, without pools and retries."""

    def __init__(self, number: int, connection: Any, again: Callable[[], Awaitable[DirectShard]]) -> None:
        self.number = number
        self.connection = connection
        self.again = again
        self.pool = self.relaxed = self
        self.history = History(number)
        # The service's statements on this connection.
        self.store = Store(cast(Shard, self), QueueSettings())

    @classmethod
    async def open(cls, stack: BenchStack, number: int, session: Mapping[str, str]) -> DirectShard:
        """Connect to a queue shard of the stack; `again()` of the answer opens one more."""
        connection = await stack.connect({**session, "search_path": f"queue_{number:03d}"})
        arrays.use(connection)
        return cls(number, connection, lambda: cls.open(stack, number, session))

    async def fetch(self, statement: Statement, **values: Any) -> list[Any]:
        """All rows of one statement in its own transaction."""
        rows: list[Any] = await self.connection.fetch(statement.text, *statement.args(**values))
        return rows

    async def row(self, statement: Statement, **values: Any) -> Any:
        """The first row of one statement, or None."""
        return await self.connection.fetchrow(statement.text, *statement.args(**values))

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction."""
        async with self.connection.transaction():
            return await work(Transaction(self.connection))

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()
