"""What jobs log, for coroutines."""

from collections.abc import Mapping, Sequence
from typing import Any

from headgate import wire
from headgate._calls import verbs
from headgate._calls.elements import Result
from headgate._client.aio.sender import AsyncSender


class AsyncLogs:
    """What jobs have logged. `namespace` of a method overrides the client's."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def page(
        self, item_id: str, *, cursor: str | None = None, limit: int | None = None, namespace: str | None = None
    ) -> wire.LogPage:
        """The first lines of an item's job, or those behind `cursor`: a page's `tail` goes on where it ended."""
        query = {"cursor": cursor, "limit": limit}
        ns = namespace or self._client.namespace
        parse = wire.LogPage.model_validate
        return await self._client._send(verbs.call(verbs.ITEM_LOGS, parse, query=query, ns=ns, item=item_id))

    async def all(self, item_id: str, *, namespace: str | None = None) -> list[wire.LogEntry]:
        """All lines of an item's job, over all workers, in the order of time."""
        found = await self.page(item_id, limit=wire.PAGE_LIMIT_MAX, namespace=namespace)
        lines = found.items
        while found.next_cursor is not None:
            found = await self.page(
                item_id, cursor=found.next_cursor, limit=wire.PAGE_LIMIT_MAX, namespace=namespace
            )
            lines += found.items
        return lines

    async def write(self, batches: Sequence[Mapping[str, Any]], *, namespace: str | None = None) -> list[Result]:
        """Bring lines of items that the caller holds, as `POST /logs` takes them; a worker does it by itself."""
        ns = namespace or self._client.namespace
        return await self._client._send(verbs.batch(verbs.LOGS_WRITE, ns, batches, again=False))
