"""Made from `aio/reasons.py` by `tests/unit/headgate/unasync.py`; change that one."""

from typing import Any

from headgate._calls import flows, verbs
from headgate._calls.elements import Listing
from headgate._calls.verbs import Call
from headgate._client.blocking.sender import Sender
from headgate.wire.console import Why
from headgate.wire.dag import OpenExternal


class Reasons:
    """A sentence and the chain of causes: `client.why.topic("mail")`; of DAGs: `client.dag(id).why(key)`."""

    def __init__(self, client: Sender) -> None:
        self._client = client

    def topic(self, topic: str, *, namespace: str | None = None) -> Why:
        """Why what a topic holds is not handed out."""
        return self._client._send(self._call(namespace, topic=topic))

    def item(self, item_id: str, *, namespace: str | None = None) -> Why:
        """Why an item has not ended.

        Raises:
            NotFound: it has, or was never seen.
        """
        return self._client._send(self._call(namespace, item=item_id))

    def namespace(self, namespace: str | None = None) -> Why:
        """What holds a namespace's work up, the worst first."""
        return self._client._send(self._call(namespace))

    def externals(self, *, limit: int | None = None, namespace: str | None = None) -> Listing[OpenExternal]:
        """What DAGs wait for that somebody has to resolve, those that run longest first: of each DAG one node."""
        ns, parse = namespace or self._client.namespace, verbs.page_of(OpenExternal)

        def page(query: dict[str, Any]) -> Call[Any]:
            return verbs.call(verbs.EXTERNALS, parse, query=query, ns=ns)

        return self._client._run(flows.listed(page, limit))

    def _call(self, namespace: str | None, **query: str) -> Call[Why]:
        ns = namespace or self._client.namespace
        return verbs.call(verbs.WHY, Why.model_validate, ns=ns, query=query)
