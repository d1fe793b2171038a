"""What handles need of a client, for coroutines."""

from typing import Protocol, TypeVar

from headgate._calls.flows import Flow
from headgate._calls.verbs import Call
from headgate._http.transport import AsyncTransport

T = TypeVar("T")


class AsyncSender(Protocol):
    """Sends calls, and whole flows of them. A client is one; handles know no more of it."""

    namespace: str
    _transport: AsyncTransport

    async def _send(self, call: Call[T]) -> T: ...

    async def _run(self, flow: Flow[T]) -> T: ...
