"""For tests of handlers and of workflows, without a service: a job that no service knows of, a run in memory.

    from headgate.testing import job

    def test_count() -> None:
        assert count(job("count", "to be or not to be")) == 6

A handler is a function like any other: call it (or await it), and look at what it returns or raises. Children that
it adds with `job.expand` are in `expanded`; other calls to a service are refused unless the test gives a `client`.

    from headgate.testing import explore, replay, simulate

    def test_order() -> None:
        done = simulate(order, cart).on("card/charge", "r-1", fails=2, takes_s=300).signal("approval", at_s=60)
        assert done.output == {"receipt": "r-1"}
        explore(done, seeds=200)

A workflow runs on a clock that jumps, with tasks that do what the test says (`simulate`), in random orders with
a crash after each event (`explore`), or against the history of a run (`replay`). See
`headgate.workflow.local.simulation`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from headgate import wire
from headgate._calls.dag import Dag, Node
from headgate._calls.elements import Leased, LeasedDag
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate._ids import new_id
from headgate._worker.job import Job
from headgate.errors import HeadgateError
from headgate.workflow.local.simulation import Explored, Played, Simulation, Stalled, explore, replay, simulate

__all__ = ["Explored", "LooseJob", "Played", "Simulation", "Stalled", "explore", "job", "replay", "simulate"]

LEASE_S = 60.0


class _NoService(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise HeadgateError(f"this test's job reaches no service ({request.url.path}); give it a client")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


class LooseJob(Job):
    """A job of a test. `expanded` holds the children that the handler added."""

    expanded: list[Node]

    async def _expand(self, _dag: LeasedDag, children: Dag | Sequence[Node]) -> list[wire.NodeAdded]:
        """Remember the children, and answer as if they were new."""
        nodes = children.ordered() if isinstance(children, Dag) else children
        self.expanded += nodes
        return [wire.NodeAdded(key=node.key, item_id=new_id(0), state="released") for node in nodes]


def job(
    topic: str = "test",
    payload: Any = None,
    *,
    inputs: Any = None,
    metadata: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    attempt: int = 1,
    node: str | None = None,
    client: AsyncClient | None = None,
) -> LooseJob:
    """A job with this payload; with `node`, of that node of a DAG."""
    leased = Leased(
        id=new_id(0),
        topic=topic,
        lease_token="test",  # noqa: S106
        lease_expires_at=datetime.now(UTC) + timedelta(seconds=LEASE_S),
        attempt=attempt,
        payload=payload,
        metadata=metadata or {},
        inputs=inputs,
        headers=headers or {},
        dag=None if node is None else LeasedDag(new_id(0), node, 1),
    )
    made = LooseJob(
        leased,
        client=client or AsyncClient(transport=_NoService()),
        blocking=lambda: Client(transport=_NoService()),
        lease_s=LEASE_S,
        lease_ends_at=float("inf"),
    )
    made.expanded = []
    return made
