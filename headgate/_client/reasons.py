"""Made from `async_reasons.py` by `tests/unit/headgate/unasync.py`; change that one."""

from headgate._calls import verbs
from headgate._calls.verbs import Call
from headgate._client.sender import Sender
from headgate.wire.console import Why


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

    def _call(self, namespace: str | None, **query: str) -> Call[Why]:
        ns = namespace or self._client.namespace
        return verbs.call(verbs.WHY, Why.model_validate, ns=ns, query=query)
