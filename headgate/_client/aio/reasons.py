"""Why something does not go on, for coroutines."""

from typing import Any

from headgate._calls import flows, verbs
from headgate._calls.elements import Listing
from headgate._calls.verbs import Call
from headgate._client.aio.sender import AsyncSender
from headgate.wire.console import Why
from headgate.wire.dag import OpenExternal


class AsyncReasons:
    """A sentence and the chain of causes: `client.why.topic("mail")`; of DAGs: `client.dag(id).why(key)`."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def topic(self, topic: str, *, namespace: str | None = None) -> Why:
        """Why what a topic holds is not handed out."""
        return await self._client._send(self._call(namespace, topic=topic))

    async def item(self, item_id: str, *, namespace: str | None = None) -> Why:
        """Why an item has not ended.

        Raises:
            NotFound: it has, or was never seen.
        """
        return await self._client._send(self._call(namespace, item=item_id))

    async def namespace(self, namespace: str | None = None) -> Why:
        """What holds a namespace's work up, the worst first."""
        return await self._client._send(self._call(namespace))

    async def externals(self, *, limit: int | None = None, namespace: str | None = None) -> Listing[OpenExternal]:
        """What DAGs wait for that somebody has to resolve, those that run longest first: of each DAG one node."""
        ns, parse = namespace or self._client.namespace, verbs.page_of(OpenExternal)

        def page(query: dict[str, Any]) -> Call[Any]:
            return verbs.call(verbs.EXTERNALS, parse, query=query, ns=ns)

        return await self._client._run(flows.listed(page, limit))

    def _call(self, namespace: str | None, **query: str) -> Call[Why]:
        ns = namespace or self._client.namespace
        return verbs.call(verbs.WHY, Why.model_validate, ns=ns, query=query)
