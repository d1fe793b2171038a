"""Workers that the service knows, for coroutines."""

from typing import Any

from headgate._calls import verbs
from headgate._calls.elements import Listing, Part
from headgate._calls.flows import listed
from headgate._calls.verbs import Call
from headgate._client.aio.sender import AsyncSender
from headgate.wire.workers import WorkerNews, WorkerView


class AsyncWorkers:
    """Who takes items of a namespace. `namespace` of a method overrides the client's."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def all(
        self, *, gone: bool = False, limit: int | None = None, namespace: str | None = None
    ) -> Listing[WorkerView]:
        """Workers that are there, by name, or the first `limit`; with `gone` those that went lately."""
        parse = verbs.page_of(WorkerView)
        ns = namespace or self._client.namespace
        asked = {"gone": "true"} if gone else {}

        def build(page: dict[str, Any]) -> Call[Part[WorkerView]]:
            return verbs.call(verbs.WORKERS, parse, query={**page, **asked}, ns=ns)

        return await self._client._run(listed(build, limit))

    async def report(
        self, name: str, *, wait_s: float = 0.0, namespace: str | None = None, **said: Any
    ) -> list[str]:
        """Say what a worker is and does; see `headgate.wire.workers.WorkerReport`. A `Worker` does this by itself.

        Answers which items were cancelled meanwhile that may be its own: extend their leases, to be told.
        """
        parse = WorkerNews.model_validate
        body = {"name": name, "wait_s": wait_s, **said}
        call = verbs.call(
            verbs.WORKER_REPORT, parse, body=body, wait_s=wait_s, ns=namespace or self._client.namespace
        )
        return (await self._client._send(call)).cancelled
