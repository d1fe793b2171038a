"""Jobs of functions that no worker has: which ones are ended, and that looking for them goes on."""

import asyncio
import logging
from typing import Any

import pytest

from headgate import AsyncClient
from headgate._app import unserved
from headgate._app.unserved import Unserved
from headgate._http.transport import RetryPolicy
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import Service, problem

UNKNOWN: dict[str, Any] = {"topic": "job/gone", "ready": 1, "oldest_ready_age_s": 60.0}
ITEM = {
    "id": "i", "namespace": "default", "topic": "job/gone", "state": "ready", "enqueued_at": "2030-01-01T00:00:00Z"
}  # fmt: skip


class Queue(Service):
    """One topic, and what is asked of it."""

    def __init__(self, topic: dict[str, Any], *, ready: bool, unasked_s: float | None, taken: bool) -> None:
        super().__init__(lambda _method, path, _body: self._reply(path))
        self._topic = topic
        self._ready = [ITEM] if ready else []
        self._unasked = {"id": "i", "status": "found", "unasked_s": unasked_s}
        self._leased = [] if taken else [leased("i"), leased("j")]

    def _reply(self, path: str) -> Any:
        if path.endswith("/dequeue"):
            return {"items": self._leased}
        if path.endswith("/states"):
            return {"results": [self._unasked]}
        if path.endswith("/nack"):
            return {"results": [{"id": "i", "status": "dead"}, {"id": "j", "status": "dead"}]}
        return {"items": [self._topic] if "/topics" in path else self._ready, "next_cursor": None}


def looking(service: Service, after_s: float = 30.0) -> Unserved:
    client = AsyncClient(queue_url="http://q", transport=service, retry=RetryPolicy(attempts_max=1))
    return Unserved(client, "default", lambda: ["job/known"], after_s=after_s)


@pytest.mark.parametrize(
    ("topic", "queue", "ended"),
    [
        ({}, {}, 2),
        ({}, {"unasked_s": None}, 2),
        ({"topic": "job/known"}, {}, 0),
        ({"topic": "of/others"}, {}, 0),
        ({"paused": True}, {}, 0),
        ({"leased": 1}, {}, 0),
        ({"oldest_ready_age_s": 29.0}, {}, 0),
        ({"oldest_ready_age_s": None}, {}, 0),
        ({}, {"ready": False}, 0),
        ({}, {"unasked_s": 29.0}, 0),
        ({}, {"taken": True}, 0),
    ],
)
async def test_only_jobs_that_nobody_has_come_for_as_long_are_ended(
    topic: dict[str, Any], queue: dict[str, Any], ended: int
) -> None:
    service = Queue({**UNKNOWN, **topic}, **{"ready": True, "unasked_s": 31.0, "taken": False, **queue})
    assert await looking(service).look() == ended
    nacks = [item for body in service.asked("/nack") for item in body["items"]]
    assert [(nack["id"], nack["lease_token"], nack["final"]) for nack in nacks] == [
        (name, f"token-{name}", True) for name in ("i", "j")[:ended]
    ]
    assert all("no worker has a function 'gone', and none has come for 30 s" in nack["error"] for nack in nacks)


async def test_looking_goes_on_after_a_service_that_was_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Less often while it stays away, and as before once it has answered."""
    looks = [problem(503, "unavailable")] * 2 + [{"items": [], "next_cursor": None}, problem(503, "unavailable")]
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    def reply(*_: Any) -> Any:
        if not looks:
            raise asyncio.CancelledError
        return looks.pop(0)

    monkeypatch.setattr(unserved.asyncio, "sleep", sleep)
    monkeypatch.setattr(unserved, "pause_s", lambda failures: failures / 100)
    with caplog.at_level(logging.INFO, "headgate._worker"), pytest.raises(asyncio.CancelledError):
        await looking(Service(reply), after_s=2.0).run()
    assert slept == [2.01, 0.01, 2.01, 0.02, 2.01, 2.01, 0.01, 2.01]
    assert caplog.text.count("cannot look for jobs of unknown functions") == 3
    slept.clear()
    with pytest.raises(asyncio.CancelledError):
        await looking(Service(reply), after_s=600.0).run()
    assert slept == [unserved.LOOK_S + 0.01]
