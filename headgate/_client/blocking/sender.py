"""Made from `aio/sender.py` by `tests/unit/headgate/unasync.py`; change that one."""

from typing import Protocol, TypeVar

from headgate._calls.flows import Flow
from headgate._calls.verbs import Call
from headgate._http.transport import SyncTransport

T = TypeVar("T")


class Sender(Protocol):
    """Sends calls, and whole flows of them. A client is one; handles know no more of it."""

    namespace: str
    _transport: SyncTransport

    def _send(self, call: Call[T]) -> T: ...

    def _run(self, flow: Flow[T]) -> T: ...
