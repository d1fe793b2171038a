"""A coroutine's client asks a service for what a thread's client asks, and tells the same of what it hears."""

import inspect
import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate import AsyncClient, Client
from headgate._http.transport import RetryPolicy
from tests.unit.headgate.fakes import Service, problem

DAY = datetime(2030, 1, 1, tzinfo=UTC)
# What is called, of a run or of the client, and with what.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("schedules.put", ("nightly",), {"cron": "0 3 * * *", "topic": "t", "payload": {"a": 1}}),
    ("schedules.get", ("nightly",), {}),
    ("schedules.all", (), {"limit": 3, "namespace": "other"}),
    ("schedules.delete", ("nightly",), {}),
    ("schedules.pause", ("nightly", "why"), {}),
    ("schedules.resume", ("nightly",), {}),
    ("schedules.trigger", ("nightly",), {"at": DAY}),
    ("schedules.backfill", ("nightly", DAY, DAY), {"overlap": "allow"}),
    ("schedules.ticks", ("nightly",), {}),
    ("limits.put", ("t",), {"rate": 5.0, "concurrency": 2}),
    ("limits.get", ("t",), {}),
    ("limits.all", (), {"limit": 3}),
    ("limits.unthrottle", ("t",), {"key": "k"}),
    ("workers.all", (), {}),
    ("why.topic", ("t",), {}),
    ("why.item", ("0198f1a2-0000-7000-8000-000000000000",), {}),
    ("why.namespace", (), {}),
    ("why.externals", (), {"limit": 3}),
    ("logs.page", ("0198f1a2-0000-7000-8000-000000000000",), {}),
    ("logs.all", ("0198f1a2-0000-7000-8000-000000000000",), {}),
    ("workflows.start", ("order", {"items": 1}), {"id": "order-1"}),
    ("workflows.list", (), {"state": "running"}),
    ("run.show", (), {}),
    ("run.signal", ("go", 1), {"id": "s"}),
    ("run.update", ("ask", 1), {"id": "u", "wait_s": 0}),
    ("run.update_state", ("u",), {}),
    ("run.cancel", ("why",), {}),
    ("run.terminate", ("why",), {}),
    ("run.pause", (), {}),
    ("run.resume", (), {}),
    ("run.reset", (3, "why"), {"id": "r"}),
    ("run.move", ("2",), {}),
    ("run.history", (), {}),
]


async def told(client: Any, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
    """What a call answers, or the error that it raises."""
    place, _, verb = name.rpartition(".")
    of = client.workflows.get("order-1") if place == "run" else getattr(client, place)
    try:
        answer = getattr(of, verb)(*given, **more)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("is_there", [True, False], ids=["answered", "refused"])
@pytest.mark.parametrize(("name", "given", "more"), CALLS, ids=[name for name, _, _ in CALLS])
async def test_both_clients_ask_for_the_same(
    name: str, given: tuple[Any, ...], more: dict[str, Any], is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: Any) -> Any:
        return {"items": [], "next_cursor": None} if is_there else problem(404, "not_found")

    found = []
    for kind in (Client, AsyncClient):
        numbers = itertools.count(1)
        monkeypatch.setattr(uuid, "uuid4", lambda numbers=numbers: uuid.UUID(int=next(numbers)))
        service = Service(answer)
        client: Any = kind(
            queue_url="http://q", dag_url="http://d", transport=service, retry=RetryPolicy(base_s=0)
        )
        found.append((await told(client, name, given, more), service.calls))
    assert found[0] == found[1]
    assert found[0][1], "nothing was asked"
